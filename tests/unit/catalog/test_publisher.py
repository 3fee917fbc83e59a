from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.catalog.prefixes import UNPUBLISHED, CacheState
from pdd.catalog.publisher import PublisherRules, publishing
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from tests.unit.catalog.caches import FakeCache, snapshot
from tests.unit.catalog.meshes import Member, Members, members
from virtual.clock import run

RULES = PublisherRules(interval_s=0.1, renew_s=2.0, ttl_s=10.0, retry_s=1.0, batch_hashes=10, max_pending=50)
Body = Callable[[Members, Member], Coroutine[Any, Any, None]]


def with_a_publisher(body: Body, held: tuple[int, ...] = ()) -> None:
    async def main() -> None:
        async with members(RULES) as there:
            await body(there, await there.join("main-0", cache=FakeCache(held)))

    run(main)


async def settled(there: Members, member: Member) -> None:
    """The catalog holds what the cache does, and both say so."""
    await asyncio.sleep(RULES.renew_s + RULES.retry_s + 2 * RULES.interval_s)
    held = await there.memory.snapshot(member.instance)
    assert held is not None
    assert held == snapshot(member.cache.hashes(), seq=member.publisher.state.seq)
    assert held.state == member.publisher.state
    assert member.publisher.synced


def test_what_the_cache_holds_at_the_start_is_published() -> None:
    with_a_publisher(settled, held=tuple(range(25)))


def test_an_empty_cache_is_published_too() -> None:
    with_a_publisher(settled)


def test_nothing_is_said_to_be_published_before_it_is() -> None:
    async def body(there: Members, member: Member) -> None:
        assert member.publisher.state == UNPUBLISHED
        assert member.publisher.reason == "nothing is published yet"

    with_a_publisher(body, held=(1,))


def test_changes_of_an_interval_go_as_one_batch() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        batches = member.publisher.counts.batches
        for hash in range(5):
            member.cache.add([hash])
        member.cache.remove([4])
        await asyncio.sleep(RULES.interval_s)
        assert member.publisher.counts.batches == batches + 1
        await settled(there, member)

    with_a_publisher(body)


def test_many_changes_are_split() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        member.cache.add(range(35))
        await asyncio.sleep(RULES.interval_s)
        assert member.publisher.counts.batches == 4
        await settled(there, member)
        assert member.publisher.counts.snapshots == 1

    with_a_publisher(body)


def test_more_changes_than_are_worth_it_go_as_a_snapshot() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        member.cache.add(range(51))
        await settled(there, member)
        assert (member.publisher.counts.batches, member.publisher.counts.snapshots) == (0, 2)

    with_a_publisher(body)


def test_bytes_are_counted_a_hash_at_eight_and_a_state_at_24() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        before = member.publisher.counts.sent_bytes
        member.cache.add([1, 2])
        await settled(there, member)
        member.cache.remove([1])
        await settled(there, member)
        assert member.publisher.counts.sent_bytes - before == (24 + 16) + (24 + 8)

    with_a_publisher(body)


def test_where_nothing_changes_only_renewals_go() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        sent_bytes, renewals = member.publisher.counts.sent_bytes, member.publisher.counts.renewals
        there.catalog.calls.clear()
        await asyncio.sleep(100 * RULES.renew_s)
        assert set(there.catalog.calls) == {"renew"}
        assert 90 <= len(there.catalog.calls) == member.publisher.counts.renewals - renewals <= 100
        assert member.publisher.counts.sent_bytes == sent_bytes
        await settled(there, member)  # long after the TTL

    with_a_publisher(body, held=(1,))


def test_batches_renew_by_themselves() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        there.catalog.calls.clear()
        for hash in range(50):
            member.cache.add([hash])
            await asyncio.sleep(RULES.renew_s / 2)
        assert set(there.catalog.calls) == {"publish"}

    with_a_publisher(body)


@pytest.mark.parametrize("changing", [False, True])
def test_flushed_catalog_is_told_everything_again(changing: bool) -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        there.memory.flush()
        if changing:
            member.cache.add([7])
        await settled(there, member)
        assert member.publisher.counts.mismatches == 1

    with_a_publisher(body, held=(1, 2, 3))


def test_catalog_that_was_altered_is_told_everything_again() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        there.memory._held[member.instance].hashes.discard(2)
        await settled(there, member)

    with_a_publisher(body, held=(1, 2, 3))


def test_catalog_may_be_away_at_the_start_and_at_the_end() -> None:
    async def main() -> None:
        async with members(RULES) as there:
            there.catalog.away = True
            member = await there.join("main-0", cache=FakeCache([1, 2]))
            await asyncio.sleep(5.0)
            assert member.publisher.state == UNPUBLISHED
            assert not member.publisher.synced
            assert "nowhere" in str(member.publisher.reason)
            there.catalog.away = False
            await settled(there, member)
            there.catalog.away = True

    run(main)


def test_outage_is_survived_said_and_logged_once() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        with capture_logs() as logs:
            there.catalog.away = True
            for hash in range(10, 15):  # for less than the TTL
                member.cache.add([hash])
                await asyncio.sleep(1.0)
            member.cache.remove([10, 1])
            assert not member.publisher.synced
            assert member.publisher.counts.failures >= 4
            there.catalog.away = False
            await settled(there, member)
        assert [(entry["log_level"], entry["event"]) for entry in logs] == [
            ("warning", "prefix catalog is away, trying on"),
            ("info", "prefix catalog is back"),
        ]
        assert member.publisher.counts.snapshots == 1  # nothing was lost, so nothing is told twice

    with_a_publisher(body, held=(1, 2, 3))


def test_what_piles_up_in_an_outage_is_bounded() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        there.catalog.away = True
        for number in range(100):
            member.cache.add(range(10 * number, 10 * number + 10))
            await asyncio.sleep(1.0)
        assert len(member.publisher._outbox._pending) <= RULES.max_pending
        there.catalog.away = False
        await settled(there, member)

    with_a_publisher(body)


@pytest.mark.parametrize("what", ["batch", "snapshot"])
def test_answer_that_is_lost_is_made_good(what: str) -> None:
    async def body(there: Members, member: Member) -> None:
        if what == "batch":
            await settled(there, member)
        there.catalog.loses_answers = True
        member.cache.add([8, 9])
        await asyncio.sleep(3.0)
        assert not member.publisher.synced
        there.catalog.loses_answers = False
        member.cache.remove([8])
        await settled(there, member)
        assert member.publisher.counts.mismatches == 0

    with_a_publisher(body, held=(1,))


def test_catalog_that_refuses_snapshots_is_not_flooded_with_them() -> None:
    async def body(there: Members, member: Member) -> None:
        there.catalog.refuses_snapshots = True
        there.catalog.calls.clear()
        await asyncio.sleep(10.0)
        assert len(there.catalog.calls) <= 11
        there.catalog.refuses_snapshots = False
        await settled(there, member)

    with_a_publisher(body, held=(1,))


def test_leaving_withdraws() -> None:
    async def body(there: Members, member: Member) -> None:
        await settled(there, member)
        await there.leave("main-0")
        assert await there.memory.snapshot(member.instance) is None

    with_a_publisher(body, held=(1,))


def test_a_prefix_cache_is_a_source() -> None:
    async def main() -> None:
        async with members(RULES) as there:
            cache = PrefixCache(BlockStore(1 << 20), 16, 1 << 20)
            async with publishing(there.catalog, Instance("main-0", 1), cache, RULES) as publisher:
                await asyncio.sleep(RULES.interval_s)
                assert publisher.state == CacheState(1, 0, 0)

    run(main)
