import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.goodput import LinkBook
from gateway.routing.snapshot import Link

LINE, OTHER = ("a", "b"), ("a", "c")
PRIOR = Link(1000.0, 0, 0, 0.05)
REPORT_S = 0.25


def told(book: LinkBook, goodput: float, start_s: float, seconds: float, backlog: int = 10**9, prefill: str = "p") -> float:
    """Report that goodput for so long, and return the time of the last report."""
    now_s = start_s
    while now_s + REPORT_S <= start_s + seconds:
        now_s += REPORT_S
        book.report(LINE, prefill, "m", backlog, goodput, now_s)
    return now_s


def test_a_line_without_reports_is_believed_to_be_as_configured() -> None:
    assert LinkBook(PRIOR).link(LINE, 0.0) == PRIOR


def test_the_first_report_replaces_what_was_believed() -> None:
    book = LinkBook(PRIOR)
    book.report(LINE, "p", "m", 500, 80.0, 1.0)
    assert book.link(LINE, 1.0) == Link(80.0, 500, 1, 0.05)
    assert book.link(OTHER, 1.0) == PRIOR


@pytest.mark.parametrize(("after", "most"), [(1e7, 1.2e7), (1e3, 1e7)])
def test_a_line_that_falls_to_a_tenth_or_dies_is_seen_within_two_seconds(after: float, most: float) -> None:
    book = LinkBook(PRIOR)
    now_s = told(book, 1e8, 0.0, 5.0)
    now_s = told(book, after, now_s, 2.0)
    assert book.link(LINE, now_s).goodput_bytes_s <= most


def test_a_line_that_recovers_is_seen_within_two_seconds() -> None:
    book = LinkBook(PRIOR)
    now_s = told(book, 1e7, 0.0, 5.0)
    assert book.link(LINE, told(book, 1e8, now_s, 2.0)).goodput_bytes_s >= 0.9e8


def test_a_transfer_that_waits_for_the_computing_says_nothing_of_the_line() -> None:
    book = LinkBook(PRIOR)
    now_s = told(book, 80.0, 0.0, 2.0)
    now_s = told(book, 0.0, now_s, 4.0, prefill="q")
    assert book.link(LINE, now_s).goodput_bytes_s == pytest.approx(80.0)


def test_a_line_that_was_dead_and_is_idle_is_tried_again() -> None:
    book = LinkBook(PRIOR)
    now_s = told(book, 1e8, 0.0, 5.0)
    now_s = told(book, 1.0, now_s, 10.0)
    assert book.link(LINE, now_s).goodput_bytes_s < 1e7
    assert book.link(LINE, now_s + 6.0).goodput_bytes_s > 0.8e8


def test_prefills_that_send_at_once_share_the_line() -> None:
    book = LinkBook(PRIOR)
    for step in range(8):
        book.report(LINE, "p", "m", 300, 40.0, step * REPORT_S)
        book.report(LINE, "q", "n", 200, 60.0, step * REPORT_S)
    link = book.link(LINE, 1.75)
    assert link.goodput_bytes_s == pytest.approx(100.0)
    assert link.backlog_bytes == 500


def test_prefills_that_send_in_turn_do_not_add_up() -> None:
    book = LinkBook(PRIOR)
    now_s = told(book, 100.0, 0.0, 2.0, prefill="p")
    book.report(LINE, "p", "m", 0, 100.0, now_s)
    last_s = now_s
    for _ in range(8):  # the idle one repeats its last figure
        last_s += REPORT_S
        book.report(LINE, "p", "m", 0, 100.0, last_s)
        book.report(LINE, "q", "m", 300, 100.0, last_s)
    assert book.link(LINE, last_s).goodput_bytes_s == pytest.approx(100.0)


def test_short_transfers_in_turn_do_not_add_up() -> None:
    book = LinkBook(PRIOR)
    for step in range(20):
        book.report(LINE, "p", f"m-{step % 4}", 0, 100.0 + step, step * REPORT_S)
    assert 100.0 <= book.link(LINE, 4.75).goodput_bytes_s <= 120.0


def test_an_idle_line_is_believed_for_a_minute() -> None:
    book = LinkBook(PRIOR)
    book.report(LINE, "p", "m", 0, 80.0, 0.0)
    assert book.link(LINE, 59.0).goodput_bytes_s == 80.0
    assert book.link(LINE, 61.0).goodput_bytes_s == PRIOR.goodput_bytes_s


def test_transfers_that_move_or_were_promised_share_the_line() -> None:
    book = LinkBook(PRIOR)
    book.report(LINE, "p", "m", 900, 100.0, 0.0, transfers=3)
    book.report(LINE, "q", "m", 0, 100.0, 0.0, transfers=1)  # a prompt that is being computed
    book.promise("one", LINE, 500)
    book.promise("two", LINE, 0)
    link = book.link(LINE, 0.0)
    assert (link.backlog_bytes, link.transfers) == (1400, 4)
    assert link.transfer_s(100) == pytest.approx(0.05 + (100 + 4 * 100) / 100.0)
    assert link.transfer_s(1000) == pytest.approx(0.05 + (1000 + 1400) / 100.0)


def test_a_backlog_that_is_not_heard_of_drains() -> None:
    book = LinkBook(PRIOR)
    book.report(LINE, "p", "m", 1000, 100.0, 0.0)
    assert [book.link(LINE, now_s).backlog_bytes for now_s in (0.5, 5.5, 60.0)] == [1000, 500, 0]


def test_what_is_promised_counts_until_reports_tell_of_it() -> None:
    book = LinkBook(PRIOR)
    book.promise("one", LINE, 300)
    book.promise("two", LINE, 500)
    assert book.link(LINE, 0.0).backlog_bytes == 800
    book.settle("one")
    book.settle("one")
    assert book.link(LINE, 0.0).backlog_bytes == 500
    assert book.links(0.0).keys() == {LINE}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.booleans())))
def test_promises_all_end(steps: list[tuple[int, int, bool]]) -> None:
    book = LinkBook(PRIOR)
    for request, missing_bytes, keep in steps:
        book.promise(request, LINE, missing_bytes) if keep else book.settle(request)
    for request in range(6):
        book.settle(request)
    assert book.link(LINE, 0.0).backlog_bytes == 0


def test_an_instance_that_is_gone_sends_nothing() -> None:
    book = LinkBook(PRIOR)
    book.report(LINE, "p", "m", 300, 40.0, 0.0)
    book.forget("m")
    assert book.link(LINE, 0.0).backlog_bytes == 0


def test_a_transfer_counts_where_there_are_no_reports() -> None:
    book = LinkBook(PRIOR)
    book.transferred(LINE, 5000, 0.09, 1.0)  # mostly the round trip
    assert book.link(LINE, 1.0).goodput_bytes_s == PRIOR.goodput_bytes_s
    book.transferred(LINE, 5000, 10.0, 1.0)
    assert book.link(LINE, 1.0).goodput_bytes_s == 500.0
    book.report(LINE, "p", "m", 300, 40.0, 2.0)
    book.transferred(LINE, 5000, 10.0, 2.1)
    assert book.link(LINE, 2.1).goodput_bytes_s == 40.0


def test_round_trips_are_averaged() -> None:
    book = LinkBook(PRIOR)
    book.round_trip(LINE, 0.1)
    assert book.link(LINE, 0.0).round_trip_s == 0.1
    book.round_trip(LINE, 0.2)
    assert book.link(LINE, 0.0).round_trip_s == pytest.approx(0.125)
