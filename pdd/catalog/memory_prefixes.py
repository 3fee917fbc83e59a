"""The prefix catalog of one process, for tests and for a mesh that lives in one process: one object for all its instances.

Owns the entries and the last events; reads no clock but the registry's, and waits on the running loop, which may
be virtual.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.prefixes import (
    CacheBatch,
    CacheEvent,
    CacheEvents,
    CacheSnapshot,
    CacheState,
    PrefixCatalog,
    StreamLost,
    leading,
)
from pdd.identity import Instance

MAX_EVENTS = 4096


@dataclass(slots=True)
class _Held:
    state: CacheState | None  # None where it is not trusted
    hashes: set[int]
    runs_out_s: float


class MemoryPrefixCatalog(PrefixCatalog):
    def __init__(self, registry: MemoryRegistry, max_events: int = MAX_EVENTS) -> None:
        self._registry = registry
        self._held: dict[Instance, _Held] = {}
        self._events: deque[CacheEvent] = deque(maxlen=max_events)
        self._end = 0  # the number of the last event
        self._changed = asyncio.Event()

    async def publish(self, instance: Instance, batch: CacheBatch, ttl_s: float) -> bool:
        held = self._living(instance)
        if held is None or held.state != batch.before:
            return held is not None and held.state == batch.state
        held.hashes.update(batch.added)
        held.hashes.difference_update(batch.removed)
        held.state = batch.state if len(held.hashes) == batch.state.count else None
        if held.state is None:
            return False
        held.runs_out_s = self._registry.now_s + ttl_s
        self._tell(CacheEvent(instance, batch))
        return True

    async def publish_all(self, instance: Instance, snapshot: CacheSnapshot, ttl_s: float) -> bool:
        self._held[instance] = _Held(snapshot.state, set(snapshot.hashes), self._registry.now_s + ttl_s)
        self._tell(CacheEvent(instance, snapshot.state))
        return True

    async def renew(self, instance: Instance, state: CacheState, ttl_s: float) -> bool:
        held = self._living(instance)
        if held is None or held.state != state or len(held.hashes) != state.count:
            return False
        held.runs_out_s = self._registry.now_s + ttl_s
        return True

    async def withdraw(self, instance: Instance) -> None:
        self._held.pop(instance, None)

    async def distrust(self, instance: Instance, state: CacheState) -> None:
        held = self._living(instance)
        if held is not None and held.state == state:
            held.state = None

    async def longest(self, hashes: Sequence[int], instances: Sequence[Instance]) -> Mapping[Instance, int]:
        registered = {registration.instance for registration in await self._registry.instances()}
        found = {}
        for instance in instances:
            held = self._living(instance)
            found[instance] = leading(hashes, held.hashes) if held is not None and instance in registered else 0
        return found

    async def snapshot(self, instance: Instance) -> CacheSnapshot | None:
        held = self._living(instance)
        if held is None or held.state is None:
            return None
        return CacheSnapshot(held.state, frozenset(held.hashes))

    async def position(self) -> str:
        return str(self._end)

    async def events(self, after: str, wait_s: float) -> CacheEvents:
        if int(after) == self._end:
            with suppress(TimeoutError):  # nothing came
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        missing = self._end - int(after)
        if missing > len(self._events):
            raise StreamLost(f"the catalog's events from {after} to {self._end - len(self._events)} are gone")
        found = islice(self._events, len(self._events) - missing, None)
        return CacheEvents(tuple(found), str(self._end), caught_up=True)

    def flush(self) -> None:
        """Forget everything, as a server does that is emptied."""
        self._held.clear()
        self._events.clear()
        self._end += 1

    def _living(self, instance: Instance) -> _Held | None:
        held = self._held.get(instance)
        if held is not None and held.runs_out_s <= self._registry.now_s:
            del self._held[instance]
            return None
        return held

    def _tell(self, event: CacheEvent) -> None:
        self._events.append(event)
        self._end += 1
        self._changed.set()
        self._changed = asyncio.Event()
