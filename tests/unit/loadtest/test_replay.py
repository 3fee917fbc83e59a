from __future__ import annotations

from pathlib import Path

from loadtest.replay import Replay
from virtual.workloads.mooncake import Mooncake, TraceRequest, read_trace

TRACE = Path("tests/fixtures/mooncake/conversation_slice.jsonl")


def replay_of(*at_ms: int) -> Replay:
    return Replay(Mooncake(tuple(TraceRequest(ms, 512, 4, (number,)) for number, ms in enumerate(at_ms)), scale=1 / 16))


def test_requests_are_given_in_the_order_of_their_times_and_once() -> None:
    replay = replay_of(0, 500, 9000)
    taken = [replay.take(), replay.take(), replay.take()]
    assert [due.at_s for due in taken if due is not None] == [0.0, 0.5, 9.0]
    assert replay.take() is None


def test_there_are_users_for_what_is_asked_and_for_what_is_due_soon() -> None:
    replay = replay_of(0, 500, 9000)
    assert replay.users(0.0) == 2
    replay.take()
    assert replay.users(0.0) == 2
    assert replay.users(8.0) == 3


def test_users_never_become_fewer() -> None:
    replay = replay_of(0, 0, 0, 60_000)
    assert replay.users(0.0) == 3
    for _ in range(3):
        replay.take()
        replay.ended()
    assert replay.users(1.0) == 3


def test_it_is_finished_with_the_last_answer() -> None:
    replay = replay_of(0)
    replay.take()
    assert not replay.finished
    replay.ended()
    assert replay.finished


def test_a_published_trace_is_replayed_whole() -> None:
    with TRACE.open() as lines:
        replay = Replay(Mooncake(tuple(read_trace(lines)), scale=1 / 16))
    assert replay.waiting == 300
