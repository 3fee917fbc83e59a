"""Keeps an instance in the registry for as long as a context is open.

Used by every service. Owns the beat and its log lines; never decides what the registration says (a callable gives it, with the
load of the moment) nor whether the process goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pdd.catalog.base import IncompatibleInstance, Registration, Registry, RegistryUnavailable
from pdd.telemetry import get_logger

log = get_logger(__name__)


@asynccontextmanager
async def heartbeat(
    registry: Registry,
    make_registration: Callable[[], Registration],
    ttl_s: float = 3.0,
    on_refused: Callable[[IncompatibleInstance], None] | None = None,
) -> AsyncIterator[None]:
    """Announce at once and then every third of `ttl_s`; withdraw on leaving.

    Raises IncompatibleInstance where the first announcement is refused. A later one can be refused after an outage in which
    others joined: then `on_refused` is called and the beat ends; without it, the error cancels the body and is raised (grouped).
    A registry that is away, even at the start, is retried with every beat and logged once per outage.
    """
    beat = _Beat(registry, make_registration, ttl_s)
    await beat.announce()
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(beat.run(on_refused), name="heartbeat")
            try:
                yield
            finally:
                task.cancel()
    finally:
        await beat.withdraw()


class _Beat:
    def __init__(self, registry: Registry, make_registration: Callable[[], Registration], ttl_s: float) -> None:
        self._registry = registry
        self._make_registration = make_registration
        self._ttl_s = ttl_s
        self._away = False

    async def run(self, on_refused: Callable[[IncompatibleInstance], None] | None) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                await self.announce()
            except IncompatibleInstance as error:
                if on_refused is None:
                    raise
                on_refused(error)
                return

    async def announce(self) -> None:
        registration = self._make_registration()
        try:
            await self._registry.announce(registration, self._ttl_s)
        except RegistryUnavailable as error:
            if not self._away:
                log.warning("registry is away, trying on", instance=registration.instance.id, error=str(error))
            self._away = True
            return
        if self._away:
            log.info("registry is back", instance=registration.instance.id)
        self._away = False

    async def withdraw(self) -> None:
        instance = self._make_registration().instance
        try:
            await self._registry.withdraw(instance)
        except RegistryUnavailable as error:
            log.warning("left without withdrawing; the entry runs out by itself", instance=instance.id, error=str(error))
