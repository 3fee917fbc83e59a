"""A registry, a catalog that can be away, and instances with a cache each, for the tests of publisher and follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from pdd.catalog.base import Registration, RegistryUnavailable
from pdd.catalog.follower import CatalogFollower
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.catalog.prefixes import CacheBatch, CacheEvents, CacheSnapshot, CacheState, PrefixCatalog
from pdd.catalog.publisher import CachePublisher, PublisherRules, publishing
from pdd.identity import Instance
from tests.unit.catalog.caches import FakeCache
from tests.unit.catalog.samples import registration

TTL_S = 3.0


class FlakyCatalog(PrefixCatalog):
    """Counts what it is asked, and can be away: before a call is carried out, or after it."""

    def __init__(self, behind: PrefixCatalog) -> None:
        self.behind = behind
        self.away = False
        self.loses_answers = False
        self.refuses_snapshots = False
        self.calls: list[str] = []

    def _ask(self, name: str) -> None:
        self.calls.append(name)
        if self.away:
            raise RegistryUnavailable("registry at redis://nowhere:1 can't be used")

    def _answer(self) -> None:
        if self.loses_answers:
            raise RegistryUnavailable("registry at redis://nowhere:1 can't be used: connection lost")

    async def publish(self, instance: Instance, batch: CacheBatch, ttl_s: float) -> bool:
        self._ask("publish")
        done = await self.behind.publish(instance, batch, ttl_s)
        self._answer()
        return done

    async def publish_all(self, instance: Instance, snapshot: CacheSnapshot, ttl_s: float) -> bool:
        self._ask("publish_all")
        if self.refuses_snapshots:
            return False
        done = await self.behind.publish_all(instance, snapshot, ttl_s)
        self._answer()
        return done

    async def renew(self, instance: Instance, state: CacheState, ttl_s: float) -> bool:
        self._ask("renew")
        return await self.behind.renew(instance, state, ttl_s)

    async def withdraw(self, instance: Instance) -> None:
        self._ask("withdraw")
        await self.behind.withdraw(instance)

    async def distrust(self, instance: Instance, state: CacheState) -> None:
        self._ask("distrust")
        await self.behind.distrust(instance, state)

    async def longest(self, hashes: Sequence[int], instances: Sequence[Instance]) -> Mapping[Instance, int]:
        self._ask("longest")
        return await self.behind.longest(hashes, instances)

    async def snapshot(self, instance: Instance) -> CacheSnapshot | None:
        self._ask("snapshot")
        return await self.behind.snapshot(instance)

    async def position(self) -> str:
        self._ask("position")
        return await self.behind.position()

    async def events(self, after: str, wait_s: float) -> CacheEvents:
        self._ask("events")
        found = await self.behind.events(after, wait_s)
        self._ask("events")  # it may have gone meanwhile
        return found


@dataclass(slots=True)
class Member:
    """An instance, as far as the catalog knows it."""

    instance: Instance
    cache: FakeCache
    publisher: CachePublisher
    stack: AsyncExitStack

    @property
    def registration(self) -> Registration:
        one = registration(self.instance.id, self.instance.incarnation)
        return replace(one, cached=self.publisher.state)


@dataclass(slots=True)
class Members:
    """Who is there. Registrations are as old as the last `beat`."""

    catalog: FlakyCatalog
    stack: AsyncExitStack
    memory: MemoryPrefixCatalog
    registry: MemoryRegistry
    rules: PublisherRules = field(default_factory=PublisherRules)
    living: dict[str, Member] = field(default_factory=dict)
    listed: tuple[Registration, ...] = ()

    async def join(self, id: str, incarnation: int = 1, cache: FakeCache | None = None) -> Member:
        instance, held = Instance(id, incarnation), FakeCache() if cache is None else cache
        stack = await self.stack.enter_async_context(AsyncExitStack())
        publisher = await stack.enter_async_context(publishing(self.catalog, instance, held, self.rules))
        self.living[id] = Member(instance, held, publisher, stack)
        await self.beat()
        return self.living[id]

    async def leave(self, id: str) -> None:
        await self.living.pop(id).stack.aclose()

    async def beat(self) -> None:
        for member in self.living.values():
            await self.registry.announce(member.registration, TTL_S)
        self.listed = await self.registry.instances()

    async def beat_for(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(min(TTL_S / 3, end_s - loop.time()))
            await self.beat()


@asynccontextmanager
async def members(rules: PublisherRules | None = None, max_events: int = 4096) -> AsyncIterator[Members]:
    registry = MemoryRegistry(asyncio.get_running_loop().time)
    memory = MemoryPrefixCatalog(registry, max_events)
    async with AsyncExitStack() as stack:
        yield Members(FlakyCatalog(memory), stack, memory, registry, rules or PublisherRules())


def shown(follower: CatalogFollower, instance: Instance, universe: Sequence[int]) -> set[int]:
    """Which hashes the index has of an instance."""
    return {hash for hash in universe if follower.index.longest([hash], instance)}
