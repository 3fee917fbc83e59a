"""As many handoffs at once as main has slots, in the order in which they asked."""

from __future__ import annotations

from gateway.handoff.slots import SlotBook, full
from gateway.mode import DecoderLoad


def load(running: int, waiting: int = 0, slots: int = 2) -> DecoderLoad:
    return DecoderLoad(running, waiting, slots, 0.0)


def asked(book: SlotBook, handle: int) -> bool:
    """Whether it may go at once."""
    seen = book.ask(handle)
    return seen is None or not full(seen)


def granted(book: SlotBook) -> list[int]:
    found = []
    while (grant := book.grant()) is not None:
        handle, seen = grant
        assert seen is None or not full(seen)
        found.append(handle)
    return found


def reported(*loads: DecoderLoad) -> SlotBook:
    book = SlotBook()
    for one in loads:
        book.report(one)
    return book


def test_a_main_that_has_told_nothing_is_asked() -> None:
    assert SlotBook().ask(1) is None


def test_no_more_go_than_slots_are_free() -> None:
    book = reported(load(running=1))
    assert [asked(book, handle) for handle in (1, 2, 3)] == [True, False, False]
    assert granted(book) == []


def test_those_that_wait_at_main_have_no_slot_to_leave() -> None:
    assert not asked(reported(load(running=1, waiting=1)), 1)


def test_a_freed_slot_goes_to_the_one_that_asked_first() -> None:
    book = reported(load(running=2))
    assert not any(asked(book, handle) for handle in (1, 2, 3))
    book.report(load(running=1))
    assert granted(book) == [1]
    book.report(load(running=2))  # with 1 in it
    book.leave(1)
    assert granted(book) == []
    book.report(load(running=0))
    assert granted(book) == [2, 3]


def test_nobody_overtakes_those_that_wait() -> None:
    book = reported(load(running=2))
    assert not asked(book, 1)
    book.report(load(running=1))
    assert not asked(book, 2)
    assert granted(book) == [1]


def test_one_that_ends_leaves_its_slot_or_its_place_to_the_next() -> None:
    book = reported(load(running=1))
    assert asked(book, 1)
    assert not any(asked(book, handle) for handle in (2, 3))
    book.leave(2)
    book.leave(1)
    assert granted(book) == [3]
