from hypothesis import given
from hypothesis import strategies as st

from pdd.decode import events
from pdd.decode.frames import Outbox
from pdd.sampling import TokenLogprobs
from pdd.v1 import decode_pb2

IDLE = decode_pb2.DecodeLoad(slots=4)
BUSY = decode_pb2.DecodeLoad(slots=4, running=1)


def taken(outbox: Outbox, step: int = 1, load: decode_pb2.DecodeLoad = IDLE) -> decode_pb2.DecodeFrame:
    frame = outbox.take(step, load)
    assert frame is not None
    return frame


def test_steps_that_pile_up_leave_as_one_frame() -> None:
    outbox = Outbox()
    outbox.open(events.kv_ready(1, 3))
    outbox.token(1, 1, 11, None)
    outbox.token(2, 7, 71, None)
    outbox.token(1, 2, 12, None)
    outbox.close(events.stopped(1, 3))
    frame = taken(outbox, step=9)
    assert (frame.step, list(frame.handle), list(frame.index), list(frame.token)) == (9, [1, 2, 1], [1, 7, 2], [11, 71, 12])
    assert [event.handle for event in frame.opening] == [1]
    assert [event.stopped.next_index for event in frame.closing] == [3]


def test_what_was_taken_is_not_taken_again() -> None:
    outbox = Outbox()
    outbox.token(1, 1, 11, None)
    taken(outbox)
    assert outbox.take(2, IDLE) is None
    outbox.token(1, 2, 12, None)
    assert list(taken(outbox).token) == [12]


def test_logprobs_belong_to_the_tokens_that_have_them() -> None:
    outbox = Outbox()
    outbox.token(1, 1, 11, None)
    outbox.token(2, 1, 21, TokenLogprobs(-0.5, ((21, -0.5),)))
    frame = taken(outbox)
    assert list(frame.logprobs_of) == [1]
    assert [list(entry.top_tokens) for entry in frame.logprobs] == [[21]]


def test_a_load_alone_is_a_frame_only_where_the_peer_knows_another() -> None:
    outbox = Outbox()
    assert taken(outbox).load == IDLE
    assert outbox.take(1, IDLE) is None
    assert taken(outbox, load=BUSY).load == BUSY
    assert outbox.take(2, decode_pb2.DecodeLoad(slots=4, running=1, step_us=77)) is None


def test_more_than_the_bound_overflows() -> None:
    outbox = Outbox(bound=3)
    for index in range(3):
        outbox.token(1, index, 5, None)
    assert not outbox.overflowing
    outbox.close(events.aborted(1))
    assert outbox.overflowing


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_handles_tokens_stay_in_order_however_steps_coalesce(steps: list[list[int]], reads: list[bool]) -> None:
    outbox, made, got = Outbox(), dict.fromkeys((1, 2, 3), 0), list[tuple[int, int]]()
    for handles, read in zip(steps, reads, strict=False):
        for handle in handles:
            outbox.token(handle, made[handle], 0, None)
            made[handle] += 1
        if read and (frame := outbox.take(1, IDLE)) is not None:
            got.extend(zip(frame.handle, frame.index, strict=True))
    if (frame := outbox.take(1, BUSY)) is not None:
        got.extend(zip(frame.handle, frame.index, strict=True))
    for handle, count in made.items():
        assert [index for other, index in got if other == handle] == list(range(count))
