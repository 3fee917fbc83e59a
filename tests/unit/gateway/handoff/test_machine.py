"""Each race of the handoff as a script: events in, actions out."""

from collections.abc import Sequence

import pytest

from gateway.generation import MeshErrorCode
from gateway.handoff.actions import Abort, Action, Emit, Extend, Fail, Finish, StopRelay, ThrottleRelay
from gateway.handoff.estimate import HandoffPolicy, Pace
from gateway.handoff.events import (
    ClientGone,
    Closed,
    DeadlinePassed,
    Extended,
    Failed,
    Finished,
    FirstToken,
    HandoffEvent,
    KvReady,
    Lost,
    ModeChanged,
    NewTokens,
    Stopped,
    StopRequested,
    TransferDone,
    TransferFailed,
    Wanted,
)
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.mode import HandoffMode
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs

P, RLD, MD = Role.PREFILL, Role.RELAY, Role.MAIN
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
ONE_SHOT, CATCH_UP = HandoffMode.ONE_SHOT, HandoffMode.CATCH_UP
# Main computes 5 ids within the inter-token target, 6 are too many; the relay is as fast.
CPU = HandoffPolicy(prior=Pace(relay_interval_s=0.01, extend_s=0.009, round_trip_s=0.04))
DONE, BROKEN, GONE = "the answer is complete", "the request failed", "the client has gone"


def token(index: int) -> int:
    """The token that every decoder makes at an output index."""
    return 100 + index


def tokens(role: Role, first_index: int, count: int = 1) -> NewTokens:
    return NewTokens(role, first_index, tuple(token(index) for index in range(first_index, first_index + count)))


def emit(role: Role, first_index: int, count: int = 1) -> Emit:
    return Emit(first_index, tokens(role, first_index, count).tokens, role)


def extend(first_index: int, end_index: int, *, then_decode: bool) -> Extend:
    return Extend(first_index, tuple(token(index) for index in range(first_index, end_index)), then_decode)


def aborts(why: str, *roles: Role) -> list[Action]:
    return [Abort(role, why) for role in roles]


def run(machine: HandoffMachine, events: Sequence[HandoffEvent], now_s: float = 0.0) -> list[Action]:
    return [action for event in events for action in machine.handle(event, now_s)]


def relayed(mode: HandoffMode = ONE_SHOT) -> HandoffMachine:
    return HandoffMachine(Pipeline.RELAY, mode, CPU)


FIRST = FirstToken(token(0))

RACES: dict[str, tuple[list[HandoffEvent], list[Action]]] = {
    "one-shot hands over everything when the relay has stopped": (
        [FIRST, tokens(RLD, 1), KvReady(MD), Stopped(RLD, 2), Extended(MD, 2, 9, 0.1), tokens(MD, 2), Finished(MD, LENGTH, 3)],
        [emit(P, 0), emit(RLD, 1), StopRelay(), extend(0, 2, then_decode=True), emit(MD, 2), *aborts(DONE, P), Finish(LENGTH)],
    ),
    "prefill that has released is not aborted": (
        [FIRST, KvReady(MD), Closed(P), Stopped(RLD, 1), tokens(MD, 1), Finished(MD, STOP, 2)],
        [emit(P, 0), StopRelay(), extend(0, 1, then_decode=True), emit(MD, 1), Finish(STOP)],
    ),
    "tokens between the stop and its answer are shown": (
        [FIRST, KvReady(MD), tokens(RLD, 1, 2), tokens(RLD, 3), Stopped(RLD, 4)],
        [emit(P, 0), StopRelay(), emit(RLD, 1, 2), emit(RLD, 3), extend(0, 4, then_decode=True)],
    ),
    "the relay's tokens and end wait for index 0": (
        [tokens(RLD, 1, 2), Finished(RLD, STOP, 3), FIRST],
        [emit(P, 0), emit(RLD, 1, 2), *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "main's KV waits for index 0": (
        [KvReady(MD), tokens(RLD, 1), FIRST],
        [emit(P, 0), StopRelay(), emit(RLD, 1)],
    ),
    "EOS at index 0 ends it at once and is not shown, whatever came before": (
        [KvReady(RLD), tokens(RLD, 1), KvReady(MD), FirstToken(token(0), STOP)],
        [*aborts(DONE, P, RLD, MD), Finish(STOP)],
    ),
    "the only token is shown": (
        [FirstToken(token(0), LENGTH)],
        [emit(P, 0), *aborts(DONE, P, RLD, MD), Finish(LENGTH)],
    ),
    "EOS at index 1": (
        [FIRST, KvReady(RLD), Finished(RLD, STOP, 1)],
        [emit(P, 0), *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "EOS at index 1 before index 0 is here": (
        [KvReady(RLD), Finished(RLD, STOP, 1), FIRST],
        [emit(P, 0), *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "EOS is the first that main samples": (
        [FIRST, KvReady(MD), Stopped(RLD, 1), Extended(MD, 1, 5, 0.1), Finished(MD, STOP, 1)],
        [emit(P, 0), StopRelay(), extend(0, 1, then_decode=True), *aborts(DONE, P), Finish(STOP)],
    ),
    "EOS in the moment in which main's KV is ready": (
        [FIRST, KvReady(MD), tokens(RLD, 1), Finished(RLD, STOP, 2)],
        [emit(P, 0), StopRelay(), emit(RLD, 1), *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "main's KV ready after the relay has finished": (
        [FIRST, tokens(RLD, 1), Finished(RLD, LENGTH, 2), KvReady(MD)],
        [emit(P, 0), emit(RLD, 1), *aborts(DONE, P, MD), Finish(LENGTH)],
    ),
    "a finish that crossed the stop wins, its answer is not waited for": (
        [FIRST, tokens(RLD, 1), KvReady(MD), tokens(RLD, 2), Finished(RLD, LENGTH, 3), Stopped(RLD, 3)],
        [emit(P, 0), emit(RLD, 1), StopRelay(), emit(RLD, 2), *aborts(DONE, P, MD), Finish(LENGTH)],
    ),
    "no eager token but index 0": (
        [FIRST, KvReady(RLD), KvReady(MD), Stopped(RLD, 1), tokens(MD, 1)],
        [emit(P, 0), StopRelay(), extend(0, 1, then_decode=True), emit(MD, 1)],
    ),
    "a relay stopped before it had its KV does not know index 0": (
        [FIRST, KvReady(MD), Stopped(RLD, 0), tokens(MD, 1)],
        [emit(P, 0), StopRelay(), extend(0, 1, then_decode=True), emit(MD, 1)],
    ),
    "a stop string ends it as finished": (
        [FIRST, tokens(RLD, 1), StopRequested(), tokens(RLD, 2)],
        [emit(P, 0), emit(RLD, 1), *aborts(DONE, P, RLD, MD), Finish(STOP)],
    ),
    "a stop string in the switch": (
        [FIRST, KvReady(MD), StopRequested(), Stopped(RLD, 1)],
        [emit(P, 0), StopRelay(), *aborts(DONE, P, RLD, MD), Finish(STOP)],
    ),
    "the client leaves": (
        [FIRST, tokens(RLD, 1), ClientGone(), tokens(RLD, 2), Finished(RLD, STOP, 3)],
        [emit(P, 0), emit(RLD, 1), *aborts(GONE, P, RLD, MD)],
    ),
    "silence": (
        [FIRST, DeadlinePassed(30.0)],
        [
            emit(P, 0),
            *aborts(BROKEN, P, RLD, MD),
            Fail(MeshErrorCode.DEADLINE, None, "nothing heard for 30 s, waiting for the KV to reach main"),
        ],
    ),
    "prefill fails": (
        [Failed(P, MeshErrorCode.OVERLOADED, "full"), Closed(P)],
        [*aborts(BROKEN, P, RLD, MD), Fail(MeshErrorCode.OVERLOADED, P, "full")],
    ),
    "prefill releases without a first token": (
        [Closed(P)],
        [*aborts(BROKEN, RLD, MD), Fail(MeshErrorCode.ENGINE_FAILED, P, "dropped the request unasked")],
    ),
    "prefill is lost while main's KV is on its way": (
        [FIRST, tokens(RLD, 1), Lost(P, "gone")],
        [emit(P, 0), emit(RLD, 1), *aborts(BROKEN, RLD, MD), Fail(MeshErrorCode.PEER_LOST, P, "gone")],
    ),
    "prefill is lost when every decoder has its KV": (
        [FIRST, tokens(RLD, 1), KvReady(MD), Lost(P, "gone"), Stopped(RLD, 2), tokens(MD, 2), Finished(MD, STOP, 3)],
        [emit(P, 0), emit(RLD, 1), StopRelay(), extend(0, 2, then_decode=True), emit(MD, 2), Finish(STOP)],
    ),
    "the relay is lost after it has stopped": (
        [FIRST, KvReady(MD), Stopped(RLD, 1), Lost(RLD, "gone"), tokens(MD, 1), Finished(MD, STOP, 2)],
        [emit(P, 0), StopRelay(), extend(0, 1, then_decode=True), emit(MD, 1), *aborts(DONE, P), Finish(STOP)],
    ),
    "the relay is lost before it has stopped": (
        [FIRST, KvReady(MD), Lost(RLD, "gone")],
        [emit(P, 0), StopRelay(), *aborts(BROKEN, P, MD), Fail(MeshErrorCode.PEER_LOST, RLD, "gone")],
    ),
    "main is lost while it decodes": (
        [FIRST, KvReady(MD), Stopped(RLD, 1), tokens(MD, 1), Lost(MD, "gone")],
        [
            emit(P, 0),
            StopRelay(),
            extend(0, 1, then_decode=True),
            emit(MD, 1),
            *aborts(BROKEN, P),
            Fail(MeshErrorCode.PEER_LOST, MD, "gone"),
        ],
    ),
    "main refuses its KV": (
        [FIRST, Failed(MD, MeshErrorCode.KV_REFUSED, "checksum"), TransferFailed(MD, "refused")],
        [emit(P, 0), *aborts(BROKEN, P, RLD), Fail(MeshErrorCode.KV_REFUSED, MD, "checksum")],
    ),
    "a transfer fails": (
        [FIRST, TransferFailed(MD, "refused"), Failed(MD, MeshErrorCode.KV_REFUSED, "checksum")],
        [emit(P, 0), *aborts(BROKEN, P, RLD, MD), Fail(MeshErrorCode.KV_REFUSED, MD, "refused")],
    ),
    "prefill missed the answer to a commit that came whole": (
        [FIRST, KvReady(RLD), TransferFailed(RLD, "lost"), tokens(RLD, 1)],
        [emit(P, 0), emit(RLD, 1)],
    ),
    "main drops the request unasked": (
        [FIRST, Closed(MD)],
        [emit(P, 0), *aborts(BROKEN, P, RLD), Fail(MeshErrorCode.ENGINE_FAILED, MD, "dropped the request unasked")],
    ),
    "news for the timeline changes nothing": (
        [Wanted(MD, 3, 300), FIRST, Extended(RLD, 1, 4, 0.1), TransferDone(MD, 3, 300, 1.0)],
        [emit(P, 0)],
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_handoff_race(name: str) -> None:
    events, actions = RACES[name]
    assert run(relayed(), events) == actions


BROKEN_PROTOCOL: dict[str, tuple[list[HandoffEvent], Role, str]] = {
    "a repeated index": ([FIRST, tokens(RLD, 1), tokens(RLD, 1)], RLD, "token index 1 came where 2 is next"),
    "index 0 from the relay": ([FIRST, tokens(RLD, 0)], RLD, "token index 0 came where 1 is next"),
    "a hole": ([FIRST, tokens(RLD, 2)], RLD, "token index 2 came where 1 is next"),
    "a hole before index 0 is here": ([tokens(RLD, 2), FIRST], RLD, "token index 2 came where 1 is next"),
    "an end that skips tokens": (
        [FIRST, tokens(RLD, 1), Finished(RLD, STOP, 3)],
        RLD,
        "Finished at index 3 after tokens up to 2",
    ),
    "a stop that skips tokens": ([FIRST, KvReady(MD), Stopped(RLD, 2)], RLD, "Stopped at index 2 after tokens up to 1"),
    "a stop nobody asked for": ([FIRST, Stopped(RLD, 1)], RLD, "Stopped without being asked"),
    "a relay that goes on after its end": ([FIRST, KvReady(MD), Stopped(RLD, 1), tokens(RLD, 1)], RLD, "NewTokens after its end"),
    "main before its turn": ([FIRST, tokens(MD, 1)], MD, "NewTokens while waiting for the KV to reach main"),
    "main finished before its turn": ([FIRST, KvReady(MD), Finished(MD, STOP, 1)], MD, "Finished while waiting for the relay"),
    "main stopped": ([FIRST, KvReady(MD), Stopped(RLD, 1), Stopped(MD, 1)], MD, "Stopped while waiting for tokens from main"),
    "an extend nobody asked for": ([FIRST, KvReady(MD), Extended(MD, 1, 1, 0.0)], MD, "Extended to 1, which was not asked for"),
    "a second first token": ([FIRST, FIRST], P, "a second first token"),
    "too few logprobs": ([FIRST, NewTokens(RLD, 1, (5, 6), (TokenLogprobs(-1.0, ()),))], RLD, "1 logprobs for 2 tokens"),
}


@pytest.mark.parametrize("name", BROKEN_PROTOCOL)
def test_handoff_fails_a_peer_that_breaks_the_protocol(name: str) -> None:
    events, culprit, why = BROKEN_PROTOCOL[name]
    machine = relayed()
    before, last = run(machine, events[:-1]), run(machine, events[-1:])
    fail = last[-1]
    assert isinstance(fail, Fail)
    assert (fail.code, fail.role) == (MeshErrorCode.ENGINE_FAILED, culprit)
    assert why in fail.message
    shown = [index for action in [*before, *last] if isinstance(action, Emit) for index in _indices(action)]
    assert shown == list(range(len(shown)))
    assert machine.handle(tokens(MD, len(shown)), 0.0) == ()


def _indices(action: Emit) -> range:
    return range(action.first_index, action.first_index + len(action.tokens))


def test_direct_shows_index_0_at_once_and_sends_it_ahead() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, ONE_SHOT, CPU)
    assert run(machine, [FIRST]) == [emit(P, 0), extend(0, 1, then_decode=True)]
    assert run(machine, [KvReady(MD), Extended(MD, 1, 5, 0.1), tokens(MD, 1), Finished(MD, STOP, 2)]) == [
        emit(MD, 1),
        *aborts(DONE, P),
        Finish(STOP),
    ]
    assert machine.handoff is None


def test_direct_ends_at_index_0_without_main() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, ONE_SHOT, CPU)
    assert run(machine, [FirstToken(token(0), LENGTH)]) == [emit(P, 0), *aborts(DONE, P, MD), Finish(LENGTH)]


def test_logprobs_travel_with_their_tokens() -> None:
    first, second = TokenLogprobs(-0.5, ((1, -0.5),)), TokenLogprobs(-0.7, ())
    assert run(relayed(), [FirstToken(token(0), logprobs=first), NewTokens(RLD, 1, (5,), (second,))]) == [
        Emit(0, (token(0),), P, (first,)),
        Emit(1, (5,), RLD, (second,)),
    ]


def test_catch_up_sends_what_there_is_less_the_last_id_and_then_what_came_since() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39)])
    assert run(machine, [KvReady(MD)]) == [ThrottleRelay(0.018), extend(0, 39, then_decode=False)]
    assert run(machine, [tokens(RLD, 40, 20)]) == [emit(RLD, 40, 20)]
    assert run(machine, [Extended(MD, 39, 39, 0.35)], now_s=0.4) == [extend(39, 59, then_decode=False)]
    assert run(machine, [tokens(RLD, 60, 3)]) == [emit(RLD, 60, 3)]
    assert run(machine, [Extended(MD, 59, 20, 0.18)], now_s=0.6) == [StopRelay()]  # 4 ids fit the inter-token target
    assert run(machine, [tokens(RLD, 63), Stopped(RLD, 64)]) == [emit(RLD, 63), extend(59, 64, then_decode=True)]
    assert machine.handoff is CATCH_UP


def test_catch_up_with_little_to_send_is_one_shot() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 3)])
    assert run(machine, [KvReady(MD), Stopped(RLD, 4)]) == [StopRelay(), extend(0, 4, then_decode=True)]
    assert machine.handoff is ONE_SHOT


def test_catch_up_stops_after_its_rounds() -> None:
    machine = HandoffMachine(Pipeline.RELAY, CATCH_UP, HandoffPolicy(max_rounds=2, prior=CPU.prior))
    run(machine, [FIRST, tokens(RLD, 1, 99), KvReady(MD), tokens(RLD, 100, 60), Extended(MD, 99, 99, 0.9)])
    run(machine, [tokens(RLD, 160, 40)])
    assert run(machine, [Extended(MD, 159, 60, 0.54)]) == [StopRelay()]


def test_catch_up_measures_main_and_gives_up_where_the_relay_outruns_it() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD), tokens(RLD, 40, 30)])
    assert run(machine, [Extended(MD, 39, 39, 3.9)], now_s=4.0) == [StopRelay()]  # 100 ms a token


def test_catch_up_counts_the_prompts_tail_as_computed() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 9), KvReady(MD), tokens(RLD, 10, 9)])
    # 0.1 s for 9 ids alone would be 11 ms each and the rest too much; for 9 ids and 15 of the prompt it is 4 ms each.
    assert run(machine, [Extended(MD, 9, 24, 0.1)]) == [StopRelay()]


def test_mode_change_turns_a_running_catch_up_into_one_shot_at_once() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD)])
    assert run(machine, [ModeChanged(ONE_SHOT)]) == [StopRelay()]
    # Main has not answered the round yet: the rest queues behind it, and the late answer changes nothing.
    assert run(machine, [Stopped(RLD, 40)]) == [extend(39, 40, then_decode=True)]
    assert run(machine, [Extended(MD, 39, 39, 0.4), Extended(MD, 40, 1, 0.01), tokens(MD, 40)]) == [emit(MD, 40)]
    assert machine.handoff is ONE_SHOT


@pytest.mark.parametrize(
    ("late", "actions"), [(ONE_SHOT, [StopRelay()]), (CATCH_UP, [ThrottleRelay(0.018), extend(0, 39, then_decode=False)])]
)
def test_mode_of_the_moment_in_which_the_kv_is_ready_counts(late: HandoffMode, actions: list[Action]) -> None:
    machine = relayed(CATCH_UP if late is ONE_SHOT else ONE_SHOT)
    run(machine, [FIRST, tokens(RLD, 1, 39), ModeChanged(late)])
    assert run(machine, [KvReady(MD)]) == actions


def test_mode_change_does_not_disturb_a_stop_under_way() -> None:
    machine = relayed(ONE_SHOT)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD)])
    assert run(machine, [ModeChanged(CATCH_UP), ModeChanged(ONE_SHOT)]) == []
