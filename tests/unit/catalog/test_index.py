from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pdd.catalog.index import PrefixIndex
from pdd.catalog.prefixes import UNPUBLISHED, CacheEvent, CacheSnapshot, CacheState
from pdd.identity import Instance
from tests.unit.catalog.caches import batch, snapshot

MAIN = Instance("main-0", 1)
PREFILL = Instance("prefill-0", 1)


def index_with(*hashes: int) -> PrefixIndex:
    index = PrefixIndex()
    index.follow([MAIN])
    index.load(MAIN, snapshot(hashes))
    return index


def test_newcomer_is_in_doubt_until_it_is_loaded() -> None:
    index = PrefixIndex()
    index.follow([MAIN])
    assert set(index.doubts) == {MAIN}
    index.load(MAIN, snapshot([1, 2]))
    assert not index.doubts
    assert index.longest([1, 2, 3], MAIN) == 2


def test_batches_in_order_are_applied() -> None:
    index = index_with(1, 2)
    index.apply(CacheEvent(MAIN, batch(index.states[MAIN], added=[3, 4], removed=[2])))
    assert not index.doubts
    assert [index.longest([hash], MAIN) for hash in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_batch_that_the_snapshot_has_in_it_changes_nothing() -> None:
    old = batch(UNPUBLISHED, added=[9])
    index = PrefixIndex()
    index.follow([MAIN])
    index.load(MAIN, snapshot([1], seq=3))
    index.apply(CacheEvent(MAIN, old))
    index.apply(CacheEvent(MAIN, snapshot([8], seq=3).state))
    assert not index.doubts
    assert index.longest([9], MAIN) == 0


def test_missing_batch_puts_that_instance_alone_in_doubt() -> None:
    index = index_with(1)
    index.follow([MAIN, PREFILL])
    index.load(PREFILL, snapshot([5]))
    second = batch(batch(index.states[MAIN], added=[2]).state, added=[3])
    index.apply(CacheEvent(MAIN, second))
    assert set(index.doubts) == {MAIN}
    assert "batches between 1 and 3 are missing" in index.doubts[MAIN]
    assert index.longest([1], MAIN) == 1  # a hint all the same


def test_batch_that_does_not_fit_its_digest_is_a_doubt() -> None:
    index = index_with(1)
    wrong = batch(CacheState(1, 1, 77), added=[2])
    index.apply(CacheEvent(MAIN, wrong))
    assert set(index.doubts) == {MAIN}


def test_batch_that_removes_what_is_not_there_is_a_doubt() -> None:
    index = index_with(1)
    index.apply(CacheEvent(MAIN, batch(index.states[MAIN], removed=[2])))
    assert set(index.doubts) == {MAIN}


def test_snapshot_that_does_not_fit_its_digest_stays_in_doubt() -> None:
    index = PrefixIndex()
    index.follow([MAIN])
    assert not index.load(MAIN, CacheSnapshot(CacheState(1, 2, 3), frozenset({1, 3})))
    assert set(index.doubts) == {MAIN}


def test_instance_in_doubt_takes_no_batches() -> None:
    index = index_with(1)
    index.doubt_all("to see")
    index.apply(CacheEvent(MAIN, batch(index.states[MAIN], added=[2])))
    assert index.longest([1, 2], MAIN) == 1


def test_what_was_published_anew_has_to_be_loaded() -> None:
    index = index_with(1)
    index.apply(CacheEvent(MAIN, snapshot([1], seq=2).state))
    assert set(index.doubts) == {MAIN}


def test_heartbeat_that_says_more_is_a_doubt_and_an_older_one_is_none() -> None:
    index = index_with(1)
    first = index.states[MAIN]
    index.apply(CacheEvent(MAIN, batch(first, added=[2])))
    index.compare(MAIN, first)
    assert not index.doubts
    index.compare(MAIN, batch(index.states[MAIN], added=[3]).state)
    assert set(index.doubts) == {MAIN}


def test_heartbeat_with_another_digest_is_a_doubt() -> None:
    index = index_with(1)
    index.compare(MAIN, CacheState(1, 1, 2))
    assert set(index.doubts) == {MAIN}


def test_restarted_instance_holds_nothing_of_its_predecessor() -> None:
    index = index_with(1, 2)
    successor = Instance(MAIN.id, 2)
    assert index.longest([1, 2], successor) == 0
    index.follow([successor])
    assert index.longest([1, 2], successor) == 0
    assert index.longest([1, 2], MAIN) == 0
    index.apply(CacheEvent(MAIN, batch(snapshot([1, 2]).state, added=[3])))
    index.load(MAIN, snapshot([1, 2, 3]))
    assert set(index.states) == {successor}
    assert index.longest([1, 2, 3], MAIN) == 0


def test_instance_that_is_gone_holds_nothing() -> None:
    index = index_with(1)
    index.follow([])
    assert index.longest([1], MAIN) == 0
    assert not index.doubts


@given(st.integers(0, 40), st.integers(0, 40))
def test_longest_prefix_is_found_wherever_it_ends(held: int, asked: int) -> None:
    chain = [hash * 7 for hash in range(1, 41)]
    assert index_with(*chain[:held]).longest(chain[:asked], MAIN) == min(held, asked)


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 20), min_size=1, max_size=5)), max_size=10), st.data())
def test_a_snapshot_and_the_batches_after_any_earlier_event_give_what_is_held(
    changes: list[tuple[bool, set[int]]], data: st.DataObject
) -> None:
    snapshots = [snapshot([])]
    batches = []
    for is_added, hashes in changes:
        last = snapshots[-1]
        added = hashes - last.hashes if is_added else set[int]()
        removed = set[int]() if is_added else hashes & last.hashes
        batches.append(batch(last.state, added, removed))
        snapshots.append(CacheSnapshot(batches[-1].state, (last.hashes | added) - removed))
    assert all(one.before == before.state for one, (before, _) in zip(batches, pairwise(snapshots), strict=True))
    taken = data.draw(st.integers(0, len(batches)))
    noted = data.draw(st.integers(0, taken))
    index = PrefixIndex()
    index.follow([MAIN])
    index.load(MAIN, snapshots[taken])
    for one in batches[noted:]:
        index.apply(CacheEvent(MAIN, one))
    assert not index.doubts
    assert index.states[MAIN] == snapshots[-1].state
    assert {hash for hash in range(21) if index.longest([hash], MAIN)} == snapshots[-1].hashes
