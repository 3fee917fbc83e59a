from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdd.catalog.outbox import Outbox
from pdd.catalog.prefixes import UNPUBLISHED, CacheState
from tests.unit.catalog.caches import FakeCache, snapshot

CHANGES = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=8)), max_size=20)


def outbox(batch_hashes: int = 100, max_pending: int = 1000) -> Outbox:
    """One that has published an empty cache."""
    made = Outbox(batch_hashes, max_pending)
    made.sent(made.snapshot(frozenset()).state)
    return made


def test_nothing_is_published_at_first() -> None:
    made = Outbox(10, 10)
    made.add((1,), ())
    assert made.anew is not None
    assert made.told == UNPUBLISHED
    assert made.next_batch() is None


@given(CHANGES, st.integers(1, 5))
def test_batches_lead_to_what_the_cache_holds(changes: list[tuple[bool, list[int]]], batch_hashes: int) -> None:
    cache, made, held = FakeCache(), outbox(batch_hashes), set[int]()
    for is_added, hashes in changes:
        (cache.add if is_added else cache.remove)(hashes)
        taken = cache.take_changes()
        made.add(taken.added, taken.removed)
        # One at a time, so that changes pile up and meet each other.
        if (sent := made.next_batch()) is not None:
            assert len(sent.added) + len(sent.removed) <= batch_hashes
            assert sent.before == made.told
            assert not held & set(sent.added)
            assert held >= set(sent.removed)
            held = (held | set(sent.added)) - set(sent.removed)
            made.sent(sent.state)
    while (sent := made.next_batch()) is not None:
        held = (held | set(sent.added)) - set(sent.removed)
        made.sent(sent.state)
    assert held == cache.hashes()
    assert made.told == snapshot(held, made.told.seq).state


def test_batch_stays_the_same_until_it_is_sent() -> None:
    made = outbox()
    made.add((1, 2), ())
    first = made.next_batch()
    made.add((3,), (1,))
    assert made.next_batch() == first
    assert first is not None
    made.sent(first.state)
    second = made.next_batch()
    assert second is not None
    assert (second.added, second.removed) == ((3,), (1,))


def test_what_came_and_went_untold_is_not_told() -> None:
    made = outbox()
    made.add((1, 2), ())
    made.add((), (2, 1))
    assert made.next_batch() is None


def test_batches_keep_the_order_of_the_changes() -> None:
    """So that a part of them is prefix-closed too."""
    made = outbox(batch_hashes=2)
    made.add((9, 7, 8), ())
    first = made.next_batch()
    assert first is not None
    assert first.added == (9, 7)


def test_more_changes_than_are_worth_it_are_published_anew() -> None:
    made = outbox(max_pending=3)
    made.add((1, 2, 3), ())
    assert made.anew is None
    made.add((4,), ())
    assert made.anew == "4 changes have piled up"
    assert made.next_batch() is None


def test_a_snapshot_is_numbered_above_what_may_have_arrived() -> None:
    made = outbox()
    made.add((1,), ())
    lost = made.next_batch()
    assert lost is not None
    made.publish_anew("lost")
    assert made.snapshot(frozenset({1})).state == CacheState(lost.state.seq + 1, 1, 1)
