"""Each race of the handoff as a script: events in, actions out."""

import pytest

from gateway.generation import MeshErrorCode
from gateway.handoff.actions import Action, Emit, Fail, Finish, StopRelay
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
    NewTokens,
    Stopped,
    StopRequested,
    TransferDone,
    TransferFailed,
    Wanted,
)
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.mode import Leaning
from pdd.catalog.base import Role
from pdd.sampling import TokenLogprobs

from .script import (
    BROKEN,
    CPU,
    DONE,
    FIRST,
    GONE,
    LENGTH,
    MD,
    ONE_SHOT,
    RLD,
    STOP,
    P,
    aborts,
    emit,
    extend,
    relayed,
    run,
    token,
    tokens,
)

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
            Fail(MeshErrorCode.DEADLINE, None, "nothing heard for 30 s, waiting for tokens from the relay"),
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
        [emit(P, 0), emit(RLD, 1), *aborts("gone", MD)],
    ),
    "prefill is lost while the relay's KV is on its way": (
        [FIRST, Lost(P, "gone")],
        [emit(P, 0), *aborts(BROKEN, RLD, MD), Fail(MeshErrorCode.PEER_LOST, P, "gone")],
    ),
    "prefill fails, and then goes, while main's KV is on its way": (
        [FIRST, KvReady(RLD), Failed(P, MeshErrorCode.ENGINE_FAILED, "broke"), Closed(P), Closed(MD), Finished(RLD, STOP, 1)],
        [emit(P, 0), *aborts("broke", MD), Finish(STOP)],
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
    "main refuses its KV, and the relay goes on to the end": (
        [FIRST, Failed(MD, MeshErrorCode.KV_REFUSED, "checksum"), TransferFailed(MD, "refused"), Finished(RLD, STOP, 1)],
        [emit(P, 0), *aborts(DONE, P), Finish(STOP)],
    ),
    "a transfer to main fails, and the relay goes on to the end": (
        [FIRST, TransferFailed(MD, "refused"), KvReady(MD), Closed(MD), tokens(RLD, 1), Finished(RLD, STOP, 2)],
        [emit(P, 0), *aborts("refused", MD), emit(RLD, 1), *aborts(DONE, P), Finish(STOP)],
    ),
    "main is lost before index 0 is here, and the relay goes on to the end": (
        [KvReady(MD), tokens(RLD, 1), Lost(MD, "gone"), FIRST, Finished(RLD, STOP, 2)],
        [emit(P, 0), emit(RLD, 1), *aborts(DONE, P), Finish(STOP)],
    ),
    "main is lost while the relay stops for it": (
        [FIRST, KvReady(MD), Lost(MD, "gone")],
        [emit(P, 0), StopRelay(), *aborts(BROKEN, P, RLD), Fail(MeshErrorCode.PEER_LOST, MD, "gone")],
    ),
    "without main the relay is needed": (
        [FIRST, Lost(MD, "gone"), Lost(RLD, "gone too")],
        [emit(P, 0), *aborts(BROKEN, P), Fail(MeshErrorCode.PEER_LOST, RLD, "gone too")],
    ),
    "a transfer to the relay fails": (
        [FIRST, TransferFailed(RLD, "full", MeshErrorCode.OVERLOADED)],
        [emit(P, 0), *aborts(BROKEN, P, RLD, MD), Fail(MeshErrorCode.OVERLOADED, RLD, "full")],
    ),
    "prefill missed the answer to a commit that came whole": (
        [FIRST, KvReady(RLD), TransferFailed(RLD, "lost"), tokens(RLD, 1)],
        [emit(P, 0), emit(RLD, 1)],
    ),
    "main drops the request unasked": (
        [FIRST, KvReady(MD), Closed(MD)],
        [
            emit(P, 0),
            StopRelay(),
            *aborts(BROKEN, P, RLD),
            Fail(MeshErrorCode.ENGINE_FAILED, MD, "dropped the request unasked"),
        ],
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
    "main before its turn": ([FIRST, tokens(MD, 1)], MD, "NewTokens while waiting for tokens from the relay"),
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
    machine = HandoffMachine(Pipeline.DIRECT, Leaning(ONE_SHOT), CPU)
    assert run(machine, [FIRST]) == [emit(P, 0), extend(0, 1, then_decode=True)]
    assert run(machine, [KvReady(MD), Extended(MD, 1, 5, 0.1), tokens(MD, 1), Finished(MD, STOP, 2)]) == [
        emit(MD, 1),
        *aborts(DONE, P),
        Finish(STOP),
    ]
    assert machine.handoff is None


def test_direct_ends_at_index_0_without_main() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, Leaning(ONE_SHOT), CPU)
    assert run(machine, [FirstToken(token(0), LENGTH)]) == [emit(P, 0), *aborts(DONE, P, MD), Finish(LENGTH)]


def test_logprobs_travel_with_their_tokens() -> None:
    first, second = TokenLogprobs(-0.5, ((1, -0.5),)), TokenLogprobs(-0.7, ())
    assert run(relayed(), [FirstToken(token(0), logprobs=first), NewTokens(RLD, 1, (5,), (second,))]) == [
        Emit(0, (token(0),), P, (first,)),
        Emit(1, (5,), RLD, (second,)),
    ]
