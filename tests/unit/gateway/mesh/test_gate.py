"""Which frames pass when, on a clock of the test's."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.handoff.events import HandoffEvent, NewTokens
from gateway.mesh.decode_frames import decode_events
from gateway.mesh.gate import MIN_INTERVAL_S, FrameGate
from pdd.catalog.base import Role
from pdd.v1 import decode_pb2, sampling_pb2

MD = Role.MAIN


def step(number: int, *handles: int, load: decode_pb2.DecodeLoad | None = None) -> decode_pb2.DecodeFrame:
    """One token of each handle, all of output index `number`."""
    tokens = [100 * handle + number for handle in handles]
    return decode_pb2.DecodeFrame(step=number, handle=handles, index=[number] * len(handles), token=tokens, load=load)


def stopped(handle: int, next_index: int) -> decode_pb2.DecodeFrame:
    return decode_pb2.DecodeFrame(
        closing=[decode_pb2.ClosingEvent(handle=handle, stopped=decode_pb2.Stopped(next_index=next_index))]
    )


def test_steps_of_an_engine_pass_at_once() -> None:
    gate = FrameGate()
    for number in range(1, 5):
        frame = step(number, 1, 2)
        assert list(gate.arrive(frame, number * 0.005)) == [frame]
        assert gate.due_s is None


def test_a_burst_passes_as_one_frame_when_its_time_has_come() -> None:
    gate = FrameGate()
    gate.arrive(step(1, 1, 2), 1.0)
    assert [gate.arrive(step(number, 1, 2), 1.0005) for number in (2, 3, 4)] == [(), (), ()]
    assert gate.due_s == 1.0 + MIN_INTERVAL_S
    (frame,) = gate.let_go(1.002)
    assert frame.step == 4
    assert decode_events(frame, MD) == {
        1: [NewTokens(MD, 2, (102, 103, 104))],
        2: [NewTokens(MD, 2, (202, 203, 204))],
    }
    assert gate.due_s is None
    assert gate.let_go(1.003) == ()


def test_an_event_passes_at_once_behind_the_tokens_that_were_held() -> None:
    gate = FrameGate()
    gate.arrive(step(1, 1), 1.0)
    gate.arrive(step(2, 1), 1.0)
    event = stopped(1, 3)
    held, last = gate.arrive(event, 1.0)
    assert (list(held.token), last) == ([102], event)
    assert gate.due_s is None


def test_logprobs_are_not_held() -> None:
    gate = FrameGate()
    gate.arrive(step(1, 1), 1.0)
    frame = step(2, 1)
    frame.logprobs_of.append(0)
    frame.logprobs.append(sampling_pb2.TokenLogprobs(logprob=-1.0))
    assert list(gate.arrive(frame, 1.0)) == [frame]


def test_the_load_is_the_last_one_told() -> None:
    gate = FrameGate()
    gate.arrive(step(1, 1), 1.0)
    gate.arrive(step(2, 1, load=decode_pb2.DecodeLoad(running=2, waiting=1, slots=2)), 1.0)
    gate.arrive(step(3, 1, load=decode_pb2.DecodeLoad(running=1, waiting=0, slots=2)), 1.0)
    gate.arrive(step(4, 1), 1.0)
    (frame,) = gate.let_go(1.1)
    assert (frame.load.running, frame.load.waiting, frame.load.slots) == (1, 0, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.003)), max_size=30))
def test_whatever_the_times_nothing_is_lost_and_every_handle_hears_its_events_in_order(kinds: list[tuple[int, float]]) -> None:
    gate, now_s = FrameGate(), 1.0
    passed: list[decode_pb2.DecodeFrame] = []
    sent: list[HandoffEvent] = []
    for number, (kind, pause_s) in enumerate(kinds):
        now_s += pause_s
        if gate.due_s is not None and gate.due_s <= now_s:
            passed.extend(gate.let_go(gate.due_s))
        frame = step(number, 1) if kind else stopped(1, number)
        sent.extend(_heard([frame]))
        passed.extend(gate.arrive(frame, now_s))
    passed.extend(gate.let_go(now_s))
    assert _singly(_heard(passed)) == _singly(sent)


def _heard(frames: Sequence[decode_pb2.DecodeFrame]) -> list[HandoffEvent]:
    return [event for frame in frames for event in decode_events(frame, MD).get(1, [])]


def _singly(events: Sequence[HandoffEvent]) -> list[HandoffEvent]:
    """With a NewTokens for each token."""
    single: list[HandoffEvent] = []
    for event in events:
        if isinstance(event, NewTokens):
            single.extend(NewTokens(MD, event.first_index + place, (token,)) for place, token in enumerate(event.tokens))
        else:
            single.append(event)
    return single
