"""What every prefix catalog promises, whatever keeps its entries."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import Registry
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.catalog.prefixes import UNPUBLISHED, CacheEvent, CacheState, PrefixCatalog, StreamLost
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.identity import Instance
from tests.unit.catalog.caches import batch, snapshot
from tests.unit.catalog.samples import registration

LONG_S = 60.0
SHORT_S = 0.05
WAIT_S = 0.01
MAX_EVENTS = 20

MAIN = registration().instance
OTHER = Instance("prefill-0", 1)
CHAIN = [2**64 - 1 - 3 * number for number in range(100)]


class Backend(ABC):
    """A catalog, its registry, and ways to make it lose things."""

    catalog: PrefixCatalog
    registry: Registry

    @abstractmethod
    async def run_out(self, instance: Instance) -> None:
        """Return once what the instance published with SHORT_S has run out."""

    @abstractmethod
    async def flush(self) -> None: ...

    @abstractmethod
    async def tamper(self, instance: Instance) -> None:
        """Take one block from what is held, behind the catalog's back."""


class Memory(Backend):
    def __init__(self) -> None:
        self.now_s = 0.0
        self.registry = MemoryRegistry(lambda: self.now_s)
        self.catalog: MemoryPrefixCatalog = MemoryPrefixCatalog(self.registry, MAX_EVENTS)

    async def run_out(self, instance: Instance) -> None:
        self.now_s += SHORT_S

    async def flush(self) -> None:
        self.catalog.flush()

    async def tamper(self, instance: Instance) -> None:
        self.catalog._held[instance].hashes.pop()


class InRedis(Backend):
    def __init__(self, registry: RedisRegistry, catalog: RedisPrefixCatalog, client: Redis) -> None:
        self.registry = registry
        self.catalog = catalog
        self._client = client

    async def run_out(self, instance: Instance) -> None:
        async with asyncio.timeout(10):
            while await self._client.keys(f"pdd:cached:{instance.id}:*"):  # noqa: ASYNC110
                await asyncio.sleep(SHORT_S / 10)

    async def flush(self) -> None:
        await self._client.flushall()

    async def tamper(self, instance: Instance) -> None:
        await self._client.spop(f"pdd:cached:{instance.id}:{instance.incarnation:016x}:blocks")


@pytest.fixture(params=["memory", "redis"])
async def backend(request: pytest.FixtureRequest, valkey_url: str) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield Memory()
        return
    async with (
        Redis.from_url(valkey_url) as client,
        RedisRegistry(valkey_url) as registry,
        RedisPrefixCatalog(valkey_url, max_events=MAX_EVENTS) as catalog,
    ):
        await client.flushall()
        yield InRedis(registry, catalog, client)


@pytest.fixture
async def catalog(backend: Backend) -> PrefixCatalog:
    """One in which MAIN is registered."""
    await backend.registry.announce(registration(), LONG_S)
    return backend.catalog


async def publish_all(catalog: PrefixCatalog, *hashes: int, instance: Instance = MAIN, ttl_s: float = LONG_S) -> CacheState:
    whole = snapshot(hashes)
    assert await catalog.publish_all(instance, whole, ttl_s)
    return whole.state


async def longest(catalog: PrefixCatalog, *hashes: int, instance: Instance = MAIN) -> int:
    return (await catalog.longest(hashes, [instance]))[instance]


async def test_nothing_is_held_by_who_has_published_nothing(catalog: PrefixCatalog) -> None:
    assert await catalog.longest([1, 2], [MAIN, OTHER]) == {MAIN: 0, OTHER: 0}
    assert await catalog.snapshot(MAIN) is None


async def test_longest_prefix_is_found_wherever_it_ends(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog)
    for held in range(18):
        assert await longest(catalog, *CHAIN[:20]) == held
        assert await longest(catalog, *CHAIN[:held]) == held
        change = batch(state, added=[CHAIN[held]])
        assert await catalog.publish(MAIN, change, LONG_S)
        state = change.state
    assert await longest(catalog) == 0


async def test_changes_are_held_at_once(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, *CHAIN[:3])
    assert await catalog.publish(MAIN, batch(state, added=CHAIN[3:6], removed=CHAIN[2:3]), LONG_S)
    found = await catalog.snapshot(MAIN)
    assert found is not None
    assert found.hashes == {*CHAIN[:2], *CHAIN[3:6]}
    assert found == snapshot(found.hashes, seq=2)


async def test_cache_that_became_empty_is_held_as_empty(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1)
    change = batch(state, removed=[1])
    assert await catalog.publish(MAIN, change, LONG_S)
    assert await catalog.snapshot(MAIN) == snapshot([], seq=2)
    assert await catalog.renew(MAIN, change.state, LONG_S)
    assert await catalog.publish(MAIN, batch(change.state, added=[1]), LONG_S)


async def test_same_batch_again_changes_nothing(catalog: PrefixCatalog) -> None:
    change = batch(await publish_all(catalog, 1), added=[2])
    position = await catalog.position()
    assert await catalog.publish(MAIN, change, LONG_S)
    assert await catalog.publish(MAIN, change, LONG_S)
    assert (await catalog.events(position, WAIT_S)).events == (CacheEvent(MAIN, change),)


async def test_batch_on_top_of_something_else_is_refused(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1)
    for wrong in (UNPUBLISHED, CacheState(2, 1, 1), CacheState(1, 2, 1), CacheState(1, 1, 9)):
        assert not await catalog.publish(MAIN, batch(wrong, added=[5]), LONG_S)
    assert await catalog.snapshot(MAIN) == snapshot([1])
    assert await catalog.renew(MAIN, state, LONG_S)


async def test_batch_before_everything_was_published_is_refused(catalog: PrefixCatalog) -> None:
    assert not await catalog.publish(MAIN, batch(UNPUBLISHED, added=[5]), LONG_S)
    assert await longest(catalog, 5) == 0


async def test_batch_that_is_not_net_is_refused_and_everything_wanted_anew(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1)
    assert not await catalog.publish(MAIN, batch(state, added=[1]), LONG_S)
    assert not await catalog.renew(MAIN, state, LONG_S)


async def test_publishing_everything_replaces_what_was_held(catalog: PrefixCatalog) -> None:
    await publish_all(catalog, 1, 2)
    whole = snapshot([2, 3], seq=9)
    assert await catalog.publish_all(MAIN, whole, LONG_S)
    assert await catalog.snapshot(MAIN) == whole


async def test_renewal_keeps_what_is_held(backend: Backend, catalog: PrefixCatalog) -> None:
    renewed = await publish_all(catalog, 1, ttl_s=SHORT_S)
    assert await catalog.renew(MAIN, renewed, LONG_S)
    await publish_all(catalog, 1, instance=OTHER, ttl_s=SHORT_S)
    await backend.run_out(OTHER)
    assert await longest(catalog, 1) == 1
    assert await catalog.snapshot(OTHER) is None


async def test_publishing_keeps_what_is_held(backend: Backend, catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1, ttl_s=SHORT_S)
    assert await catalog.publish(MAIN, batch(state, added=[2]), LONG_S)
    await publish_all(catalog, 1, instance=OTHER, ttl_s=SHORT_S)
    await backend.run_out(OTHER)
    assert await longest(catalog, 1, 2) == 2


async def test_what_is_not_renewed_runs_out_by_itself(backend: Backend, catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1, ttl_s=SHORT_S)
    await backend.run_out(MAIN)
    assert await longest(catalog, 1) == 0
    assert await catalog.snapshot(MAIN) is None
    assert not await catalog.renew(MAIN, state, LONG_S)


async def test_renewal_of_something_else_is_refused(catalog: PrefixCatalog) -> None:
    assert not await catalog.renew(MAIN, UNPUBLISHED, LONG_S)
    state = await publish_all(catalog, 1)
    assert not await catalog.renew(MAIN, CacheState(state.seq, 1, 2), LONG_S)


async def test_renewal_notices_that_blocks_are_missing(backend: Backend, catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1, 2)
    await backend.tamper(MAIN)
    assert not await catalog.renew(MAIN, state, LONG_S)


async def test_flushed_catalog_refuses_renewals_and_batches(backend: Backend, catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog, 1)
    await backend.flush()
    assert not await catalog.renew(MAIN, state, LONG_S)
    assert not await catalog.publish(MAIN, batch(state, added=[2]), LONG_S)


async def test_distrusted_state_is_wanted_anew_and_a_newer_one_is_not(catalog: PrefixCatalog) -> None:
    old = await publish_all(catalog, 1)
    change = batch(old, added=[2])
    assert await catalog.publish(MAIN, change, LONG_S)
    await catalog.distrust(MAIN, old)
    assert await catalog.renew(MAIN, change.state, LONG_S)
    await catalog.distrust(MAIN, change.state)
    assert not await catalog.renew(MAIN, change.state, LONG_S)
    assert await catalog.snapshot(MAIN) is None


async def test_withdrawn_instance_holds_nothing(catalog: PrefixCatalog) -> None:
    await publish_all(catalog, 1)
    await publish_all(catalog, 1, instance=Instance(MAIN.id, 2))
    await catalog.withdraw(MAIN)
    assert await longest(catalog, 1) == 0
    assert await catalog.snapshot(MAIN) is None
    assert await catalog.snapshot(Instance(MAIN.id, 2)) is not None


async def test_restarted_instance_holds_nothing_of_its_predecessor(backend: Backend, catalog: PrefixCatalog) -> None:
    """Long before anything of the predecessor runs out."""
    await publish_all(catalog, 1, 2)
    successor = Instance(MAIN.id, 2)
    await backend.registry.announce(registration(incarnation=2), LONG_S)
    assert await catalog.longest([1, 2], [MAIN, successor]) == {MAIN: 0, successor: 0}
    await publish_all(catalog, 1, instance=successor)
    assert await catalog.longest([1, 2], [MAIN, successor]) == {MAIN: 0, successor: 1}


async def test_instance_out_of_the_registry_holds_nothing(backend: Backend, catalog: PrefixCatalog) -> None:
    await publish_all(catalog, 1)
    await backend.registry.withdraw(MAIN)
    assert await longest(catalog, 1) == 0


async def test_events_tell_every_change_in_order(catalog: PrefixCatalog) -> None:
    position = await catalog.position()
    state = await publish_all(catalog, 1)
    first = batch(state, added=[2, 3])
    second = batch(first.state, removed=[3])
    for change in (first, second):
        assert await catalog.publish(MAIN, change, LONG_S)
    found = await catalog.events(position, WAIT_S)
    assert found.events == (CacheEvent(MAIN, state), CacheEvent(MAIN, first), CacheEvent(MAIN, second))
    assert found.caught_up
    assert found.position == await catalog.position()


async def test_events_are_resumed_at_any_position(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog)
    positions, changes = [await catalog.position()], []
    for hash in range(5):
        changes.append(batch(state, added=[hash]))
        state = changes[-1].state
        assert await catalog.publish(MAIN, changes[-1], LONG_S)
        positions.append(await catalog.position())
    for at, position in enumerate(positions):
        found = await catalog.events(position, WAIT_S)
        assert [event.change for event in found.events] == changes[at:]


async def test_nothing_new_is_no_event(catalog: PrefixCatalog) -> None:
    for _ in range(2):  # with an empty stream, and with one that is not
        position = await catalog.position()
        found = await catalog.events(position, WAIT_S)
        assert (found.events, found.position, found.caught_up) == ((), position, True)
        await publish_all(catalog, 1)


async def test_event_is_had_as_soon_as_it_comes(catalog: PrefixCatalog) -> None:
    waiting = asyncio.create_task(catalog.events(await catalog.position(), LONG_S))
    await asyncio.sleep(WAIT_S)
    state = await publish_all(catalog, 1)
    while not (found := await waiting).events:  # the backend bounds how long it waits
        waiting = asyncio.create_task(catalog.events(found.position, LONG_S))
    assert found.events == (CacheEvent(MAIN, state),)


async def test_trimmed_stream_is_lost(catalog: PrefixCatalog) -> None:
    state = await publish_all(catalog)
    early = await catalog.position()
    for hash in range(300):
        change = batch(state, added=[hash])
        assert await catalog.publish(MAIN, change, LONG_S)
        state = change.state
    with pytest.raises(StreamLost):
        await catalog.events(early, WAIT_S)
    late = await catalog.position()
    await publish_all(catalog, 1)
    assert len((await catalog.events(late, WAIT_S)).events) == 1


async def test_stream_is_lost_with_its_server_before_and_after_new_events(backend: Backend, catalog: PrefixCatalog) -> None:
    await publish_all(catalog, 1)
    position = await catalog.position()
    await backend.flush()
    with pytest.raises(StreamLost):
        await catalog.events(position, WAIT_S)
    await publish_all(catalog, 1)
    with pytest.raises(StreamLost):
        await catalog.events(position, WAIT_S)
    assert (await catalog.events(await catalog.position(), WAIT_S)).events == ()
