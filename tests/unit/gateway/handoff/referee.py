"""Watches a handoff from outside, every event that goes in and every action that comes out, and objects to what must not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.generation import Tokens
from gateway.handoff.actions import Abort, Action, Emit, Extend, Fail, Finish, OpenRelay, StopRelay
from gateway.handoff.events import (
    ClientGone,
    Closed,
    DeadlinePassed,
    Failed,
    Finished,
    HandoffEvent,
    KvReady,
    Lost,
    MainLoad,
    NewTokens,
    Recalled,
    Stopped,
    StopRequested,
    TransferFailed,
    Unavailable,
)
from gateway.handoff.machine import Pipeline
from gateway.handoff.slots import full
from gateway.mode import DecoderLoad
from pdd.catalog.base import Role

from .peers import Answer, token


@dataclass
class Referee:
    pipeline: Pipeline
    answer: Answer
    whole: set[Role] = field(default_factory=set)  # decoders that have said that their KV is
    closed: set[Role] = field(default_factory=set)  # whose last word was heard
    gone: set[Role] = field(default_factory=set)  # lost, failed, not to be had, or given up before the end
    aborted: list[Role] = field(default_factory=list)
    ends: list[Finish | Fail] = field(default_factory=list)
    logged: int = 0  # tokens that the machine has emitted
    shown: list[int] = field(default_factory=list)
    interrupted: bool = False  # by the client or the deadline
    main_load: DecoderLoad | None = None  # as last told
    main_has_ids: bool = False  # main was given something, or the relay told to stop for it
    relay_stopped: bool = False
    last_source: Role = Role.PREFILL

    def __post_init__(self) -> None:
        self.main_has_ids = self.pipeline is Pipeline.DIRECT
        if self.main_has_ids:
            self.gone.add(Role.RELAY)
        if self.pipeline is Pipeline.SINGULAR:
            self.gone.add(Role.MAIN)

    def hear(self, event: HandoffEvent) -> None:
        match event:
            case KvReady(role=role) | NewTokens(role=role):
                self.whole.add(role)
            case TransferFailed(role=role) if role not in self.whole:
                self.gone.add(role)
            case Unavailable(role=role) | Lost(role=role) | Failed(role=role):
                self.gone.add(role)
            case MainLoad(load=load):
                self.main_load = load
            case Recalled():
                self.main_has_ids = False
            case StopRequested() | ClientGone() | DeadlinePassed():
                self.interrupted = True
        if isinstance(event, Stopped | Finished | Lost | Closed) or (
            isinstance(event, Failed) and event.role is not Role.PREFILL
        ):
            self.closed.add(event.role)

    def judge(self, actions: Sequence[Action]) -> None:
        over = any(isinstance(action, Finish | Fail) for action in actions)
        for action in actions:
            assert not self.ends, "acted after the end"
            match action:
                case Emit():
                    self._emit(action)
                case Extend() | StopRelay():
                    self._hand_over(action)
                case Abort(role=role, keep=keep):
                    self.aborted.append(role)
                    assert not keep or (role is Role.MAIN and isinstance(actions[-1], Finish)), "kept what is not complete"
                    if not over:
                        self.gone.add(role)
                case OpenRelay():
                    self.main_has_ids = self.relay_stopped = False
                    self.gone.discard(Role.RELAY)
                case Finish() | Fail():
                    self.ends.append(action)
                    self._end_is_due(action)

    def see(self, out: Sequence[Tokens]) -> None:
        for tokens in out:
            assert tokens.first_index == len(self.shown)
            self.shown.extend(tokens.tokens)

    def shows_the_answer(self) -> None:
        assert self.shown == [token(index) for index in range(len(self.shown))]
        assert len(self.shown) <= self.logged <= self.answer.length

    def nothing_is_left_open(self, last: HandoffEvent, opened: set[Role], joining: Role | None) -> None:
        """Right after the end: every handle that was opened has closed or is aborted, once."""
        assert len(self.ends) == (0 if isinstance(last, ClientGone) else 1)
        assert len(set(self.aborted)) == len(self.aborted), "each handle once"
        still_open = opened - self.closed
        maybe = set() if joining is None else {joining, Role.PREFILL}
        assert still_open <= set(self.aborted) <= still_open | self.gone | maybe
        if self.ends and isinstance(self.ends[0], Finish) and not isinstance(last, StopRequested):
            assert self.ends[0].reason is self.answer.reason
            assert len(self.shown) == self.answer.length

    def _emit(self, emit: Emit) -> None:
        assert emit.first_index == self.logged
        self.logged += len(emit.tokens)
        if emit.source is Role.RELAY:
            assert self.last_source is not Role.MAIN, "both feed the log"
        if emit.source is Role.MAIN and self.last_source is Role.RELAY:
            assert Role.RELAY in self.closed | self.gone, "the relay may have more"
        self.last_source = emit.source

    def _hand_over(self, action: Extend | StopRelay) -> None:
        relay_gone = Role.RELAY in self.gone
        assert self.main_has_ids or relay_gone or self.main_load is None or not full(self.main_load), "main has no slot"
        self.main_has_ids = True
        self.relay_stopped = self.relay_stopped or isinstance(action, StopRelay)

    def _end_is_due(self, end: Finish | Fail) -> None:
        if isinstance(end, Finish):
            return
        assert self.gone or self.interrupted
        assert "broke the protocol" not in end.message, "they all keep to it"
        if end.role is Role.MAIN:
            assert self.relay_stopped or Role.RELAY in self.gone, "the relay could have gone on"
        if end.role is Role.RELAY and self.pipeline is Pipeline.DIRECT:
            assert Role.MAIN in self.gone, "main could have gone on"
