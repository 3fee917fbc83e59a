"""Keeps a gateway's index of all prefix caches in step with the prefix catalog for as long as a context is open.

Used by the gateway. Owns the task and the index. Never raises into its owner: while the catalog is away the index stays as it
was, `synced` is false and `reason` says why. What is wrong is built anew by itself, an instance alone where only its part is: the
stream's end is noted, then the snapshot taken, and what comes after that end is applied on top.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pdd.catalog.base import Registration, RegistryUnavailable
from pdd.catalog.index import PrefixIndex
from pdd.catalog.prefixes import PrefixCatalog, StreamLost
from pdd.identity import Instance
from pdd.telemetry import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerRules:
    wait_s: float = 0.5  # for events at once; after it, who is there is looked at again
    retry_s: float = 0.5  # after a failure, and between two loads of one instance


@dataclass(slots=True)
class FollowerCounts:
    events: int = 0
    loads: int = 0  # snapshots taken into the index
    lost_streams: int = 0
    failures: int = 0  # calls that found the catalog away


class CatalogFollower:
    def __init__(
        self, catalog: PrefixCatalog, registrations: Callable[[], Sequence[Registration]], rules: FollowerRules | None = None
    ) -> None:
        """`registrations` gives who is there now; those that keep no prefix cache are passed over."""
        self.index = PrefixIndex()
        self.counts = FollowerCounts()
        self._catalog = catalog
        self._registrations = registrations
        self._rules = rules or FollowerRules()
        self._position: str | None = None
        self._load_at_s: dict[Instance, float] = {}  # not before
        self._trouble: str | None = "the prefix catalog has not been read yet"

    @property
    def synced(self) -> bool:
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the index may differ from what the instances have published."""
        if self._trouble is not None:
            return self._trouble
        return next((f"{instance}: {why}" for instance, why in self.index.doubts.items()), None)

    async def run(self) -> None:
        while True:
            try:
                await self._turn()
                self._settle()
            except RegistryUnavailable as error:
                self.counts.failures += 1
                if self._trouble is None:
                    log.warning("prefix catalog is away, going on with what is known", error=str(error))
                self._trouble = str(error)
                await asyncio.sleep(self._rules.retry_s)
            except StreamLost as error:
                self.counts.lost_streams += 1
                log.warning("prefix catalog's events have a gap, reading everything again", error=str(error))
                self._trouble, self._position = str(error), None
                await asyncio.sleep(self._rules.retry_s)

    async def _turn(self) -> None:
        """Load whoever is in doubt, then apply what comes."""
        if self._position is None:
            self._position = await self._catalog.position()
            self.index.doubt_all("events are missing")
        # Before the events are read: what is said here is among them by then.
        told = {one.instance: one.cached for one in self._registrations() if one.cached is not None}
        self.index.follow(told)
        await self._load()
        found = await self._catalog.events(self._position, self._rules.wait_s)
        for event in found.events:
            self.index.apply(event)
        self.counts.events += len(found.events)
        self._position = found.position
        if found.caught_up:
            for instance, state in told.items():
                self.index.compare(instance, state)

    async def _load(self) -> None:
        now_s = asyncio.get_running_loop().time()
        doubts = self.index.doubts
        self._load_at_s = {one: at_s for one, at_s in self._load_at_s.items() if at_s > now_s}
        for instance in doubts:
            if instance in self._load_at_s:
                continue
            self._load_at_s[instance] = now_s + self._rules.retry_s
            snapshot = await self._catalog.snapshot(instance)
            if snapshot is None:
                continue  # its publisher is about to notice
            self.counts.loads += 1
            if not self.index.load(instance, snapshot):
                log.warning("prefix catalog holds something else than it says", instance=str(instance), state=str(snapshot.state))
                await self._catalog.distrust(instance, snapshot.state)

    def _settle(self) -> None:
        if self._trouble is not None:
            log.info("prefix catalog is followed", instances=len(self.index.states))
        self._trouble = None


@asynccontextmanager
async def following(
    catalog: PrefixCatalog, registrations: Callable[[], Sequence[Registration]], rules: FollowerRules | None = None
) -> AsyncIterator[CatalogFollower]:
    """Follow until the context is left."""
    follower = CatalogFollower(catalog, registrations, rules)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(follower.run(), name="catalog follower")
        try:
            yield follower
        finally:
            task.cancel()
