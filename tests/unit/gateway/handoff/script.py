"""The words in which scripts of a handoff are written: events in, actions out, by prefill (P), relay (RLD) and main (MD)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.handoff.actions import Abort, Action, Emit, Extend
from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.events import FirstToken, HandoffEvent, ModeChanged, NewTokens
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.handoff.pace import Pace
from gateway.mode import HandoffMode, Leaning
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason

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
    return [Abort(role, why, keep=why == DONE and role is MD) for role in roles]


def run(machine: HandoffMachine, events: Sequence[HandoffEvent], now_s: float = 0.0) -> list[Action]:
    return [action for event in events for action in machine.handle(event, now_s)]


def relayed(mode: HandoffMode = ONE_SHOT, *, firm: bool = True, score: bool = False) -> HandoffMachine:
    return HandoffMachine(Pipeline.RELAY, Leaning(mode, firm), CPU, score=score)


def leaning(mode: HandoffMode, *, firm: bool = True) -> ModeChanged:
    return ModeChanged(Leaning(mode, firm))


FIRST = FirstToken(token(0))
