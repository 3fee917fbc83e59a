"""The registry of one process, for tests and for a mesh that lives in one process.

Owns the entries; reads no clock but the one it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from pdd.catalog.base import Registration, Registry, refuse_incompatible
from pdd.identity import Instance


class MemoryRegistry(Registry):
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back, e.g. the running loop's `time`."""
        self._clock = clock
        self._entries: dict[str, tuple[Registration, float]] = {}  # by instance id, with the time it runs out

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entries.clear()

    @property
    def now_s(self) -> float:
        return self._clock()

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        refuse_incompatible(registration, self._live())
        self._entries[registration.instance.id] = (registration, self._clock() + ttl_s)

    async def withdraw(self, instance: Instance) -> None:
        entry = self._entries.get(instance.id)
        if entry is not None and entry[0].instance == instance:
            del self._entries[instance.id]

    async def instances(self) -> tuple[Registration, ...]:
        return tuple(sorted(self._live(), key=lambda entry: (entry.role.value, entry.instance.id)))

    def _live(self) -> list[Registration]:
        now_s = self._clock()
        self._entries = {id: entry for id, entry in self._entries.items() if entry[1] > now_s}
        return [registration for registration, _ in self._entries.values()]
