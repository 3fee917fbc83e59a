from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.sse import EventReader

STREAM = b'data: {"a": 1}\n\n: a comment\nevent: x\ndata: second\r\n\r\ndata: [DONE]\n\n'
PAYLOADS = [b'{"a": 1}', b"second", b"[DONE]"]


def test_an_event_is_given_with_the_read_that_ends_its_line() -> None:
    events = EventReader()
    assert events.feed(b"data: fir") == []
    assert events.feed(b"st\n\nda") == [b"first"]
    assert events.feed(b"ta: second\n\ndata: third\n\n") == [b"second", b"third"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_the_events_do_not_depend_on_where_reads_are_cut(cuts: list[int]) -> None:
    events = EventReader()
    pieces = [STREAM[start:end] for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert [payload for piece in pieces for payload in events.feed(piece)] == PAYLOADS
