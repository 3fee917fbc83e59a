"""Keeps the prefix catalog in step with an instance's prefix cache for as long as a context is open.

Used by every service that keeps a cache. Owns the task and what it sends; reads the cache through `CacheSource` and never writes
it. Never raises into its owner: a catalog that is away is tried on, and one that has lost what it was told (a restart, a flush)
is told everything again. The catalog may be across the WAN, so changes go in batches, at most one an interval where the cache is
busy; where nothing changes, one small renewal every few seconds goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from pdd.catalog.base import RegistryUnavailable
from pdd.catalog.outbox import Outbox
from pdd.catalog.prefixes import CacheState, PrefixCatalog
from pdd.identity import Instance
from pdd.telemetry import get_logger

log = get_logger(__name__)


class Changes(Protocol):
    @property
    def added(self) -> Sequence[int]: ...

    @property
    def removed(self) -> Sequence[int]: ...


class CacheSource(Protocol):
    """A prefix cache, as far as its publisher sees it."""

    def take_changes(self) -> Changes:
        """What came and went since the last call; no hash is in both."""

    def hashes(self) -> frozenset[int]:
        """Everything, with all changes in it, taken or not."""


@dataclass(frozen=True, slots=True)
class PublisherRules:
    interval_s: float = 0.1  # between two looks at the cache
    renew_s: float = 2.0  # between two renewals; what was lost without a change is noticed then
    ttl_s: float = 60.0  # for which the catalog keeps what it was told: longer than an outage of the link
    retry_s: float = 1.0  # after a failure
    batch_hashes: int = 2048  # in one batch at most: 16 KiB
    max_pending: int = 1 << 16  # changes; with more, everything is published anew


@dataclass(slots=True)
class PublisherCounts:
    batches: int = 0
    snapshots: int = 0
    renewals: int = 0
    sent_bytes: int = 0  # of hashes and states, in all attempts
    failures: int = 0  # calls that found the catalog away
    mismatches: int = 0  # answers that the catalog holds something else


class CachePublisher:
    def __init__(self, catalog: PrefixCatalog, instance: Instance, source: CacheSource, rules: PublisherRules) -> None:
        self.counts = PublisherCounts()
        self._catalog = catalog
        self._instance = instance
        self._source = source
        self._rules = rules
        self._outbox = Outbox(rules.batch_hashes, rules.max_pending)
        self._renew_at_s = 0.0
        self._away: str | None = None

    @property
    def state(self) -> CacheState:
        """What the catalog has last been told, for the heartbeat."""
        return self._outbox.told

    @property
    def synced(self) -> bool:
        """The catalog has all but the changes of the last interval, as far as it is known."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why not."""
        return self._away or self._outbox.anew

    async def run(self) -> None:
        while True:
            pause_s = await self._turn()
            await asyncio.sleep(pause_s)

    async def _turn(self) -> float:
        """Send what there is; the seconds until the next turn."""
        changes = self._source.take_changes()
        self._outbox.add(changes.added, changes.removed)
        anew = self._outbox.anew is not None
        try:
            fits = await (self._send_all() if anew else self._send_changes())
        except RegistryUnavailable as error:
            self.counts.failures += 1
            if self._away is None:
                log.warning("prefix catalog is away, trying on", instance=self._instance.id, error=str(error))
            self._away = str(error)
            return self._rules.retry_s
        if self._away is not None:
            log.info("prefix catalog is back", instance=self._instance.id)
        self._away = None
        if fits:
            return self._rules.interval_s
        self.counts.mismatches += 1
        log.warning("prefix catalog has lost what it was told, telling it everything again", instance=self._instance.id)
        self._outbox.publish_anew("the catalog has lost what it was told")
        return self._rules.retry_s if anew else 0.0

    async def _send_all(self) -> bool:
        # Nothing was awaited since the changes were taken: all of them are in the snapshot, and later ones come on top.
        snapshot = self._outbox.snapshot(self._source.hashes())
        self.counts.snapshots += 1
        self.counts.sent_bytes += snapshot.size_bytes
        if not await self._catalog.publish_all(self._instance, snapshot, self._rules.ttl_s):
            return False
        self._sent(snapshot.state)
        return True

    async def _send_changes(self) -> bool:
        while (batch := self._outbox.next_batch()) is not None:
            self.counts.batches += 1
            self.counts.sent_bytes += batch.size_bytes
            if not await self._catalog.publish(self._instance, batch, self._rules.ttl_s):
                return False
            self._sent(batch.state)
        if asyncio.get_running_loop().time() < self._renew_at_s:
            return True
        self.counts.renewals += 1
        if not await self._catalog.renew(self._instance, self._outbox.told, self._rules.ttl_s):
            return False
        self._renew_later()
        return True

    def _sent(self, state: CacheState) -> None:
        self._outbox.sent(state)
        self._renew_later()

    def _renew_later(self) -> None:
        self._renew_at_s = asyncio.get_running_loop().time() + self._rules.renew_s


@asynccontextmanager
async def publishing(
    catalog: PrefixCatalog, instance: Instance, source: CacheSource, rules: PublisherRules | None = None
) -> AsyncIterator[CachePublisher]:
    """Publish until the context is left, and then withdraw what was published."""
    publisher = CachePublisher(catalog, instance, source, rules or PublisherRules())
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(publisher.run(), name="cache publisher")
            try:
                yield publisher
            finally:
                task.cancel()
    finally:
        try:
            await catalog.withdraw(instance)
        except RegistryUnavailable as error:
            log.warning("left without withdrawing from the prefix catalog; it runs out by itself", error=str(error))
