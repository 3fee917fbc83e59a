"""A decoder that joins a running request: a relay where main's KV is late, a main where the answer grows too long."""

import pytest

from gateway.generation import MeshErrorCode
from gateway.handoff.actions import Abort, Action, Fail, Finish, OpenRelay, RecallMain, StartTransfer, StopRelay
from gateway.handoff.events import (
    ClientGone,
    Closed,
    Extended,
    Failed,
    Finished,
    HandoffEvent,
    KvLate,
    KvReady,
    LongerThanExpected,
    Lost,
    Recalled,
    Stopped,
    StopRequested,
    TransferFailed,
    Unavailable,
)
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.mode import Leaning

from .script import (
    BROKEN,
    CATCH_UP,
    CPU,
    DONE,
    FIRST,
    GONE,
    MD,
    ONE_SHOT,
    RLD,
    STOP,
    P,
    aborts,
    emit,
    extend,
    run,
    tokens,
)

LATE, LONG = KvLate("2 s"), LongerThanExpected("past 64")
OPEN, RECALL, START = OpenRelay("2 s"), RecallMain(), StartTransfer("past 64")
HAS_KV = "main has its KV"
AHEAD: list[Action] = [emit(P, 0), extend(0, 1, then_decode=True)]  # what a direct request does with index 0

DIRECT: dict[str, tuple[list[HandoffEvent], list[Action]]] = {
    "a late relay takes over once main has given its ids back": (
        [FIRST, LATE, KvReady(RLD), tokens(RLD, 1, 2), Recalled(MD), tokens(RLD, 3)],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1, 2), emit(RLD, 3)],
    ),
    "and hands over to main as ever": (
        [FIRST, LATE, Recalled(MD), tokens(RLD, 1), KvReady(MD), Stopped(RLD, 2), Extended(MD, 2, 9, 0.1), tokens(MD, 2)],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1), StopRelay(), extend(0, 2, then_decode=True), emit(MD, 2)],
    ),
    "a main that extended before it was recalled goes on, and nothing of the relay is shown": (
        [FIRST, LATE, tokens(RLD, 1, 5), KvReady(MD), tokens(RLD, 6), Extended(MD, 1, 9, 0.1), tokens(MD, 1), tokens(RLD, 7)],
        [*AHEAD, OPEN, RECALL, Abort(RLD, HAS_KV), emit(MD, 1)],
    ),
    "a relay that finished meanwhile is not aborted": (
        [FIRST, LATE, tokens(RLD, 1), Finished(RLD, STOP, 2), KvReady(MD), Extended(MD, 1, 9, 0.1), tokens(MD, 1)],
        [*AHEAD, OPEN, RECALL, emit(MD, 1)],
    ),
    "a relay that finished before main gave its ids back has made the answer": (
        [FIRST, LATE, tokens(RLD, 1), Finished(RLD, STOP, 2), Recalled(MD)],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1), *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "lateness that is known before index 0 needs no recall": (
        [LATE, tokens(RLD, 1), FIRST, KvReady(MD)],
        [OPEN, emit(P, 0), emit(RLD, 1), StopRelay()],
    ),
    "KV that has come is not late": (
        [KvReady(MD), LATE, FIRST, LATE, Extended(MD, 1, 9, 0.1)],
        AHEAD,
    ),
    "it is late once": (
        [FIRST, LATE, LATE, Unavailable(RLD, "all full"), LATE],
        [*AHEAD, OPEN, RECALL],
    ),
    "without a relay to be had main is given its ids again": (
        [FIRST, LATE, Unavailable(RLD, "all full"), Recalled(MD), KvReady(MD), Extended(MD, 1, 9, 0.1), tokens(MD, 1)],
        [*AHEAD, OPEN, RECALL, extend(0, 1, then_decode=True), emit(MD, 1)],
    ),
    "without a relay to be had, and main past recalling, all is as it was": (
        [FIRST, LATE, Unavailable(RLD, "all full"), KvReady(MD), Extended(MD, 1, 9, 0.1), tokens(MD, 1)],
        [*AHEAD, OPEN, RECALL, emit(MD, 1)],
    ),
    "without a relay to be had before index 0 it is direct": (
        [LATE, Unavailable(RLD, "all full"), FIRST],
        [OPEN, *AHEAD],
    ),
    "a relay that is lost while main is recalled is not needed": (
        [FIRST, LATE, tokens(RLD, 1), Lost(RLD, "gone"), Recalled(MD)],
        [*AHEAD, OPEN, RECALL, extend(0, 1, then_decode=True)],
    ),
    "a late relay that is lost later leaves the log to main": (
        [FIRST, LATE, Recalled(MD), tokens(RLD, 1, 3), Lost(RLD, "gone"), KvReady(MD), Extended(MD, 4, 9, 0.1), tokens(MD, 4)],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1, 3), extend(0, 4, then_decode=True), emit(MD, 4)],
    ),
    "and so does one that is lost while it stops": (
        [FIRST, LATE, Recalled(MD), tokens(RLD, 1), KvReady(MD), Lost(RLD, "gone")],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1), StopRelay(), extend(0, 2, then_decode=True)],
    ),
    "a transfer to the late relay that fails leaves main alone": (
        [FIRST, LATE, TransferFailed(RLD, "refused"), Failed(RLD, MeshErrorCode.KV_REFUSED, "refused"), Recalled(MD)],
        [*AHEAD, OPEN, RECALL, *aborts("refused", RLD), extend(0, 1, then_decode=True)],
    ),
    "a main that is lost while it is recalled leaves it to the relay": (
        [FIRST, LATE, tokens(RLD, 1), Lost(MD, "gone"), tokens(RLD, 2), Finished(RLD, STOP, 3)],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1), emit(RLD, 2), *aborts(DONE, P), Finish(STOP)],
    ),
    "a main that fails with its KV before it extends leaves it to the relay": (
        [FIRST, LATE, KvReady(MD), tokens(RLD, 1), Failed(MD, MeshErrorCode.ENGINE_FAILED, "broke")],
        [*AHEAD, OPEN, RECALL, emit(RLD, 1)],
    ),
    "a transfer to main that fails while it is recalled leaves it to the relay, and what crosses is ignored": (
        [FIRST, LATE, TransferFailed(MD, "refused"), Recalled(MD), Closed(MD), tokens(RLD, 1)],
        [*AHEAD, OPEN, RECALL, *aborts("refused", MD), emit(RLD, 1)],
    ),
    "prefill that is lost before either has its KV": (
        [FIRST, LATE, Lost(P, "gone")],
        [*AHEAD, OPEN, RECALL, *aborts(BROKEN, MD, RLD), Fail(MeshErrorCode.PEER_LOST, P, "gone")],
    ),
    "prefill that is lost when the relay has its KV costs main": (
        [FIRST, LATE, KvReady(RLD), Lost(P, "gone"), tokens(RLD, 1)],
        [*AHEAD, OPEN, RECALL, *aborts("gone", MD), emit(RLD, 1)],
    ),
    "prefill that is lost when main has its KV costs the relay": (
        [FIRST, LATE, KvReady(MD), Lost(P, "gone"), Extended(MD, 1, 9, 0.1), tokens(MD, 1)],
        [*AHEAD, OPEN, RECALL, *aborts("gone", RLD), emit(MD, 1)],
    ),
    "both are lost": (
        [FIRST, LATE, Lost(RLD, "gone"), Lost(MD, "gone too")],
        [*AHEAD, OPEN, RECALL, *aborts(BROKEN, P), Fail(MeshErrorCode.PEER_LOST, MD, "gone too")],
    ),
    "main is lost, and then there is no relay to be had": (
        [FIRST, LATE, Lost(MD, "gone"), Unavailable(RLD, "all full")],
        [*AHEAD, OPEN, RECALL, *aborts(BROKEN, P), Fail(MeshErrorCode.NO_INSTANCE, RLD, "all full")],
    ),
    "prefill's second job is aborted though the first had closed": (
        [FIRST, Closed(P), LATE, ClientGone()],
        [*AHEAD, OPEN, RECALL, *aborts(GONE, MD, RLD, P)],
    ),
    "there is no second job where there is no relay": (
        [FIRST, Closed(P), LATE, Unavailable(RLD, "all full"), ClientGone()],
        [*AHEAD, OPEN, RECALL, *aborts(GONE, MD)],
    ),
    "a stop string while main is recalled": (
        [FIRST, LATE, StopRequested(), Recalled(MD)],
        [*AHEAD, OPEN, RECALL, *aborts(DONE, P, MD, RLD), Finish(STOP)],
    ),
    "a main that is lost before it has shown a token is replaced": (
        [FIRST, Lost(MD, "gone"), LATE, KvReady(RLD), tokens(RLD, 1), Finished(RLD, STOP, 2)],
        [*AHEAD, OpenRelay("gone"), emit(RLD, 1), *aborts(DONE, P), Finish(STOP)],
    ),
    "so is one that is lost before index 0": (
        [Lost(MD, "gone"), tokens(RLD, 1), FIRST, Finished(RLD, STOP, 2)],
        [OpenRelay("gone"), emit(P, 0), emit(RLD, 1), *aborts(DONE, P), Finish(STOP)],
    ),
    "so is one that refuses the KV, and what crosses is ignored": (
        [FIRST, TransferFailed(MD, "refused"), Failed(MD, MeshErrorCode.KV_REFUSED, "refused"), tokens(RLD, 1)],
        [*AHEAD, *aborts("refused", MD), OpenRelay("refused"), emit(RLD, 1)],
    ),
    "prefill gets a second job for it though the first had closed": (
        [FIRST, KvReady(MD), Closed(P), Lost(MD, "gone"), ClientGone()],
        [*AHEAD, OpenRelay("gone"), *aborts(GONE, RLD, P)],
    ),
    "without a relay to be had, a main that is lost is what is wrong": (
        [FIRST, Lost(MD, "gone"), Unavailable(RLD, "all full")],
        [*AHEAD, OpenRelay("gone"), *aborts(BROKEN, P), Fail(MeshErrorCode.PEER_LOST, MD, "gone")],
    ),
    "the relay that replaced main is needed": (
        [FIRST, Lost(MD, "gone"), Lost(RLD, "gone too")],
        [*AHEAD, OpenRelay("gone"), *aborts(BROKEN, P), Fail(MeshErrorCode.PEER_LOST, RLD, "gone too")],
    ),
    "a main that has shown a token is not replaced": (
        [FIRST, KvReady(MD), Extended(MD, 1, 9, 0.1), tokens(MD, 1), Lost(MD, "gone")],
        [*AHEAD, emit(MD, 1), *aborts(BROKEN, P), Fail(MeshErrorCode.PEER_LOST, MD, "gone")],
    ),
    "only singular answers get a main": ([FIRST, LONG], AHEAD),
}


@pytest.mark.parametrize("name", DIRECT)
def test_a_relay_joins_a_direct_request(name: str) -> None:
    events, actions = DIRECT[name]
    assert run(HandoffMachine(Pipeline.DIRECT, Leaning(ONE_SHOT), CPU), events) == actions


SINGULAR: dict[str, tuple[list[HandoffEvent], list[Action]]] = {
    "the relay makes the whole answer": (
        [FIRST, KvReady(RLD), tokens(RLD, 1, 2), Closed(P), Finished(RLD, STOP, 3)],
        [emit(P, 0), emit(RLD, 1, 2), Finish(STOP)],
    ),
    "an answer that grows too long goes to a main": (
        [
            FIRST,
            tokens(RLD, 1),
            Closed(P),
            LONG,
            tokens(RLD, 2),
            KvReady(MD),
            Stopped(RLD, 3),
            tokens(MD, 3),
            Finished(MD, STOP, 4),
        ],
        [
            *(emit(P, 0), emit(RLD, 1), START, emit(RLD, 2), StopRelay(), extend(0, 3, then_decode=True), emit(MD, 3)),
            *(*aborts(DONE, P), Finish(STOP)),
        ],
    ),
    "it may be known before index 0": (
        [LONG, KvReady(MD), FIRST],
        [START, emit(P, 0), StopRelay()],
    ),
    "a relay that finishes while the transfer is started ends it": (
        [FIRST, tokens(RLD, 1), LONG, Finished(RLD, STOP, 2), Unavailable(MD, "all full"), KvReady(MD)],
        [emit(P, 0), emit(RLD, 1), START, *aborts(DONE, P, MD), Finish(STOP)],
    ),
    "without a main to be had the relay goes on, and is not asked again": (
        [FIRST, tokens(RLD, 1), Closed(P), LONG, Unavailable(MD, "all full"), LONG, tokens(RLD, 2), Finished(RLD, STOP, 3)],
        [emit(P, 0), emit(RLD, 1), START, emit(RLD, 2), Finish(STOP)],
    ),
    "a main that is lost on its way leaves it to the relay": (
        [FIRST, tokens(RLD, 1), LONG, Lost(MD, "gone"), Finished(RLD, STOP, 2)],
        [emit(P, 0), emit(RLD, 1), START, *aborts(DONE, P), Finish(STOP)],
    ),
    "prefill that is lost when the transfer has started costs main": (
        [FIRST, tokens(RLD, 1), LONG, Lost(P, "gone"), tokens(RLD, 2)],
        [emit(P, 0), emit(RLD, 1), START, *aborts("gone", MD), emit(RLD, 2)],
    ),
    "prefill that is lost when the relay has its KV is not missed": (
        [FIRST, KvReady(RLD), Lost(P, "gone"), tokens(RLD, 1)],
        [emit(P, 0), emit(RLD, 1)],
    ),
    "the relay is needed": (
        [FIRST, LONG, Lost(RLD, "gone")],
        [emit(P, 0), START, *aborts(BROKEN, P, MD), Fail(MeshErrorCode.PEER_LOST, RLD, "gone")],
    ),
    "only direct answers get a relay": ([FIRST, LATE], [emit(P, 0)]),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_a_main_joins_a_singular_request(name: str) -> None:
    events, actions = SINGULAR[name]
    assert run(HandoffMachine(Pipeline.SINGULAR, Leaning(ONE_SHOT), CPU), events) == actions


@pytest.mark.parametrize("event", [LATE, LONG])
def test_nobody_joins_a_relay_request(event: HandoffEvent) -> None:
    assert run(HandoffMachine(Pipeline.RELAY, Leaning(ONE_SHOT), CPU), [FIRST, event]) == [emit(P, 0)]


@pytest.mark.parametrize("event", [Recalled(MD), Stopped(MD, 1)])
def test_a_main_gives_nothing_back_unasked(event: HandoffEvent) -> None:
    fail = run(HandoffMachine(Pipeline.DIRECT, Leaning(ONE_SHOT), CPU), [FIRST, event])[-1]
    assert isinstance(fail, Fail)
    assert (fail.code, fail.role) == (MeshErrorCode.ENGINE_FAILED, MD)


def test_a_late_relay_catches_main_up_in_rounds() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, Leaning(CATCH_UP), CPU)
    run(machine, [FIRST, LATE, Recalled(MD), tokens(RLD, 1, 39)])
    assert run(machine, [KvReady(MD)])[-1] == extend(0, 39, then_decode=False)
    assert run(machine, [Extended(MD, 39, 39, 0.35), Stopped(RLD, 40)]) == [StopRelay(), extend(39, 40, then_decode=True)]
    assert machine.handoff is CATCH_UP


def test_a_late_relay_that_is_lost_between_rounds_leaves_the_rest_to_main() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, Leaning(CATCH_UP), CPU)
    run(machine, [FIRST, LATE, Recalled(MD), tokens(RLD, 1, 39), KvReady(MD), tokens(RLD, 40, 2)])
    assert run(machine, [Lost(RLD, "gone")]) == [extend(39, 42, then_decode=True)]
    assert run(machine, [Extended(MD, 39, 39, 0.35), Extended(MD, 42, 3, 0.03), tokens(MD, 42)]) == [emit(MD, 42)]
    assert machine.handoff is None
