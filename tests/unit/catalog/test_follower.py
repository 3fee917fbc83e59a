from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from structlog.testing import capture_logs

from pdd.catalog.base import Role
from pdd.catalog.follower import CatalogFollower, FollowerRules, following
from pdd.catalog.prefixes import CacheState
from pdd.catalog.publisher import PublisherRules
from pdd.identity import Instance
from tests.unit.catalog.caches import FakeCache, batch
from tests.unit.catalog.meshes import Member, Members, members, shown
from tests.unit.catalog.samples import registration
from virtual.clock import run

UNIVERSE = range(60)
PUBLISHER = PublisherRules(interval_s=0.1, renew_s=2.0, ttl_s=10.0, retry_s=1.0)
FOLLOWER = FollowerRules(wait_s=0.5, retry_s=0.5)
MAX_EVENTS = 20
QUIET_S = 8.0  # a few heartbeats, whatever happened

Body = Callable[[Members, CatalogFollower], Awaitable[None]]


def followed(body: Body) -> None:
    """Run with an instance `main-0` that caches 1 and 2, and one `prefill-0` that caches 1."""

    async def main() -> None:
        async with members(PUBLISHER, MAX_EVENTS) as there:
            await there.join("main-0", cache=FakeCache([1, 2]))
            await there.join("prefill-0", cache=FakeCache([1]))
            async with following(there.catalog, lambda: there.listed, FOLLOWER) as follower:
                await settled(there, follower)
                await body(there, follower)

    run(main)


async def settled(there: Members, follower: CatalogFollower) -> None:
    """After a few heartbeats, the index shows exactly what the living hold."""
    await there.beat_for(QUIET_S)
    assert follower.reason is None
    assert follower.synced
    assert set(follower.index.states) == {member.instance for member in there.living.values()}
    for member in there.living.values():
        assert_right(follower, member)


async def publish_past(there: Members, member: Member, *hashes: int) -> None:
    """Add blocks and publish each at once, without waiting, and also while the catalog is away."""
    for hash in hashes:
        member.cache.add([hash])
        member.cache.take_changes()
        change = batch(member.publisher.state, added=[hash])
        assert await there.memory.publish(member.instance, change, PUBLISHER.ttl_s)
        member.publisher._outbox.sent(change.state)


def assert_right(follower: CatalogFollower, member: Member) -> None:
    assert shown(follower, member.instance, UNIVERSE) == member.cache.hashes()
    assert follower.index.states[member.instance] == member.publisher.state


def test_follower_is_not_synced_before_it_has_read_everything() -> None:
    async def main() -> None:
        async with members(PUBLISHER) as there:
            await there.join("main-0", cache=FakeCache([1, 2]))
            async with following(there.catalog, lambda: there.listed, FOLLOWER) as follower:
                assert follower.reason == "the prefix catalog has not been read yet"
                await settled(there, follower)

    run(main)


def test_changes_are_followed_without_loading_anything_anew() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        loads = follower.counts.loads
        cache = there.living["main-0"].cache
        cache.add(range(10, 50))
        await asyncio.sleep(0.2)
        assert_right(follower, there.living["main-0"])
        cache.remove(range(20, 50))
        await settled(there, follower)
        assert follower.counts.loads == loads
        assert follower.counts.events >= 2

    followed(body)


def test_what_changes_while_snapshots_are_taken_is_not_missed() -> None:
    async def main() -> None:
        async with members(PUBLISHER) as there:
            for number in range(4):
                await there.join(f"main-{number}", cache=FakeCache([number]))
            await there.beat_for(1.0)
            async with following(there.catalog, lambda: there.listed, FOLLOWER) as follower:
                for hash in range(10, 50):
                    for member in there.living.values():
                        member.cache.add([hash])
                        member.cache.remove([hash - 3])
                    await asyncio.sleep(0.03)
                await settled(there, follower)

    run(main)


def test_newcomer_is_followed() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        await there.join("main-1", cache=FakeCache([5]))
        await settled(there, follower)

    followed(body)


def test_restarted_instance_holds_nothing_of_its_predecessor() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        before = there.living["main-0"]
        there.catalog.away = True  # it dies without withdrawing
        await there.leave("main-0")
        there.catalog.away = False
        assert await there.memory.snapshot(before.instance) is not None
        after = await there.join("main-0", incarnation=2, cache=FakeCache([7]))
        assert follower.index.longest([1, 2], after.instance) == 0
        await asyncio.sleep(1.0)
        assert shown(follower, after.instance, UNIVERSE) == {7}
        assert shown(follower, before.instance, UNIVERSE) == set()
        await settled(there, follower)

    followed(body)


def test_dead_instance_is_forgotten_once_its_heartbeat_has_run_out() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        dead = there.living["main-0"]
        await there.leave("main-0")
        await settled(there, follower)
        assert shown(follower, dead.instance, UNIVERSE) == set()

    followed(body)


def test_instance_without_a_prefix_cache_is_passed_over() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.listed = (*there.listed, registration("relay-0", role=Role.RELAY))
        await asyncio.sleep(1.0)
        assert follower.synced
        assert Instance("relay-0", 1) not in follower.index.states

    followed(body)


def test_trimmed_stream_is_noticed_and_everything_read_again() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.catalog.away = True
        await asyncio.sleep(1.0)
        assert not follower.synced
        main = there.living["main-0"]
        await publish_past(there, main, *range(10, 10 + 2 * MAX_EVENTS))
        there.catalog.away = False
        await settled(there, follower)
        assert follower.counts.lost_streams == 1

    followed(body)


def test_outage_that_lost_nothing_costs_no_loading() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        loads = follower.counts.loads
        with capture_logs() as logs:
            there.catalog.away = True
            await there.beat_for(4.0)
            assert "nowhere" in str(follower.reason)
            assert follower.index.longest([1, 2], there.living["main-0"].instance) == 2  # a hint all the same
            there.living["main-0"].cache.add([3])
            there.catalog.away = False
            await settled(there, follower)
        told = [entry["event"] for entry in logs if "followed" in entry["event"] or "known" in entry["event"]]
        assert told == ["prefix catalog is away, going on with what is known", "prefix catalog is followed"]
        assert follower.counts.loads == loads

    followed(body)


def test_flush_is_noticed_and_everything_is_right_again_within_a_few_heartbeats() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.memory.flush()
        await asyncio.sleep(FOLLOWER.wait_s)
        assert not follower.synced
        await settled(there, follower)

    followed(body)


def test_flush_during_an_outage_with_changes_is_survived() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.catalog.away = True
        there.memory.flush()
        for hash in range(10, 20):
            there.living["main-0"].cache.add([hash])
            await there.beat_for(1.0)
        there.catalog.away = False
        await settled(there, follower)

    followed(body)


def test_missing_batch_loads_that_instance_alone() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        loads = follower.counts.loads
        main = there.living["main-0"]
        await publish_past(there, main, 3)
        there.memory._events.pop()
        main.cache.add([4])
        await settled(there, follower)
        assert follower.counts.loads == loads + 1

    followed(body)


def test_index_that_differs_from_the_heartbeat_is_loaded_anew() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        loads = follower.counts.loads
        main = there.living["main-0"]
        entry = follower.index._entries[main.instance]
        entry.hashes.add(40)
        entry.state = CacheState(entry.state.seq, entry.state.count + 1, entry.state.digest ^ 40)
        await settled(there, follower)
        assert follower.counts.loads == loads + 1

    followed(body)


def test_catalog_that_holds_something_else_than_it_says_is_told_everything_again() -> None:
    """With the count unchanged only the follower can see it."""

    async def body(there: Members, follower: CatalogFollower) -> None:
        main = there.living["main-0"]
        hashes = there.memory._held[main.instance].hashes
        hashes.remove(1)
        hashes.add(30)
        follower.index.doubt_all("to see")
        await settled(there, follower)
        assert there.memory._held[main.instance].hashes == main.cache.hashes()
        assert main.publisher.counts.mismatches == 1

    followed(body)


def test_instance_that_stays_wrong_is_not_loaded_all_the_time() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.catalog.calls.clear()
        there.living["main-0"].publisher._rules = PublisherRules(interval_s=1000.0, renew_s=1000.0)
        await there.memory.withdraw(there.living["main-0"].instance)
        follower.index.doubt_all("to see")
        for hash in range(100):  # a busy neighbour
            there.living["prefill-0"].cache.add([hash])
            await asyncio.sleep(0.1)
        assert "main-0" in str(follower.reason)
        assert there.catalog.calls.count("snapshot") <= 25

    followed(body)


def test_a_quiet_catalog_is_asked_for_little() -> None:
    async def body(there: Members, follower: CatalogFollower) -> None:
        there.catalog.calls.clear()
        await asyncio.sleep(10.0)
        assert set(there.catalog.calls) == {"events", "renew"}
        assert there.catalog.calls.count("events") <= 2 * 10.0 / FOLLOWER.wait_s + 2  # counted on entry and on leaving

    followed(body)
