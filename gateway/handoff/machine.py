"""The handoff of one request from relay to main: events in, actions out. The package says what a handoff is.

Called by `gateway.mesh.request` with everything that happens to a request; owns its token log and decides who makes the next
token. Never awaits, reads a clock or talks to anyone: times arrive with the events.

Phases
      phase         relay     main                 leaves on                 to
      PREFILLING    (early)   (early)              FirstToken                RELAYING, or MAIN_DECODES (direct)
      RELAYING      decodes   KV, then a slot      main KvReady, MainLoad    CATCHING_UP or STOPPING
      CATCHING_UP   decodes   computes a round     main Extended             CATCHING_UP or STOPPING
                                                   ModeChanged               CATCHING_UP or STOPPING
      STOPPING      ends      idle or computing    relay Stopped             MAIN_DECODES
      MAIN_DECODES  closed    extends, decodes     main Finished             OVER
                    (none)    waits for its KV     KvLate (direct)           RECALLING
                              is lost (direct)                               RELAYING
      RECALLING     (held)    waits for its KV     main Recalled             RELAYING, or MAIN_DECODES without a relay
                                                   main Extended             MAIN_DECODES
                                                   RecallLate                RELAYING, the recall still open
      any                                          an end, see rule 3        OVER

    In pipeline `singular` there is no main, and RELAYING is left for the end alone, until LongerThanExpected brings a main in.
    A main that answers an open recall with Extended is given up, since the relay has gone on; after Recalled all is as ever.
    KvLate before FirstToken brings in a relay without a recall, since main was given nothing. Both then go on as `relay` does.

Rules
    1. Indices are shown once and in order. The log takes only its next index; anything else from a decoder fails the request and
       is not shown.
    2. Streams are not ordered among each other: a decoder may speak before prefill's FirstToken is here. What it says is kept,
       and heard right after index 0. What a relay says while main is being recalled is kept too, until it is clear who goes on.
    3. Whoever makes the last token ends the request: prefill (at index 0), the relay at any time before its Stopped, or main.
       A stop string, the client leaving, a deadline, and the loss or failure of an instance that is still needed end it too.
       An end of sequence is not a token of the answer: decoders do not report it, prefill's is not shown.
    4. The end is one Finish or one Fail (neither where the client has gone), preceded by an Abort for every handle that is not
       closed. Main may keep what it has of a complete answer. Nothing is acted upon after the end.
    5. An instance that is not needed any more may go: a relay that has ended, prefill when every decoder has its KV.
    6. A relay is not stopped, and main given nothing, while main has no slot for the request: it would freeze in main's queue.
    7. While the relay decodes main is not needed: if it fails, or its KV can't reach it, the relay makes the answer to its end.
    8. A relay that joined late is never needed: if none is to be had, or it fails, main goes on from the log.
    9. A main that is lost on `direct` before it has shown a token is replaced by a relay, which makes the answer to its end.
"""

from __future__ import annotations

import enum

from gateway.generation import MeshErrorCode
from gateway.handoff.actions import Abort, Action, Fail, Finish, OpenRelay, RecallMain, StartTransfer, StopRelay
from gateway.handoff.catchup import CatchUp, Unasked
from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.events import (
    ClientGone,
    Closed,
    DeadlinePassed,
    Extended,
    Failed,
    Finished,
    FirstToken,
    HandoffEvent,
    KvLate,
    KvReady,
    LongerThanExpected,
    Lost,
    MainLoad,
    ModeChanged,
    NewTokens,
    PrefillProgress,
    Recalled,
    RecallLate,
    Stopped,
    StopRequested,
    TransferDone,
    TransferFailed,
    Unavailable,
    Wanted,
)
from gateway.handoff.holders import DecoderEvent, Holders, Loss, Trouble
from gateway.handoff.pace import Measured
from gateway.handoff.phase import BrokenProtocol, Phase
from gateway.handoff.showing import check_end, show
from gateway.handoff.switch import Switch, SwitchActions
from gateway.mode import HandoffMode, Leaning
from gateway.tokenlog import TokenLog
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason


class Pipeline(enum.Enum):
    RELAY = "relay"
    DIRECT = "direct"
    SINGULAR = "singular"


_PLANNED: dict[Pipeline, tuple[tuple[Role, ...], Role | None]] = {  # and who may join
    Pipeline.RELAY: ((Role.PREFILL, Role.RELAY, Role.MAIN), None),
    Pipeline.DIRECT: ((Role.PREFILL, Role.MAIN), Role.RELAY),
    Pipeline.SINGULAR: ((Role.PREFILL, Role.RELAY), Role.MAIN),
}
_RELAY_GOES_ON = frozenset({Phase.PREFILLING, Phase.RECALLING, Phase.RELAYING, Phase.CATCHING_UP})


class HandoffMachine:
    def __init__(self, pipeline: Pipeline, leaning: Leaning, policy: HandoffPolicy, *, score: bool = False) -> None:
        """`leaning` is the relay's at the start. `score`: main is to compare the relay's tokens with its own sampler's."""
        self.log = TokenLog()
        self.phase = Phase.PREFILLING
        self.handoff: HandoffMode | None = None  # how main took over from the relay, once it has
        self._catch_up = CatchUp(policy, score=score and pipeline is not Pipeline.DIRECT)
        self._switch = Switch(leaning, self._catch_up)
        self._holders = Holders(*_PLANNED[pipeline])
        self._kept: list[tuple[DecoderEvent, float]] = []  # heard before its turn: rule 2
        self._replaced: Loss | None = None  # why main was: rule 9
        self._recall_open = False  # and the relay goes on meanwhile
        self._actions: list[Action] = []

    @property
    def over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def measured(self) -> Measured:
        """What the request has taught of its relay's and main's pace so far."""
        return self._catch_up.measured

    def handle(self, event: HandoffEvent, now_s: float) -> tuple[Action, ...]:
        """Take one event that arrived at `now_s` (monotonic seconds) and return what to do, in order."""
        if self.over:
            return ()
        try:
            self._dispatch(event, now_s)
        except BrokenProtocol as broken:
            self._fail(MeshErrorCode.ENGINE_FAILED, broken.role, f"broke the protocol: {broken}")
        actions, self._actions = tuple(self._actions), []
        return actions

    def _dispatch(self, event: HandoffEvent, now_s: float) -> None:
        match event:
            case NewTokens(role=Role.MAIN) if self.phase is Phase.MAIN_DECODES and self._holders.hears(event):
                self._actions.append(show(self.log, event))  # what most events are, so the way to it is short
            case FirstToken():
                self._on_first_token(event, now_s)
            case KvReady() | Extended() | Recalled() | NewTokens() | Stopped() | Finished():
                self._on_decoder(event, now_s)
            case TransferFailed() | Failed() | Closed() | Lost() | Unavailable():
                self._on_trouble(event, now_s)
            case KvLate(reason):
                self._on_kv_late(reason)
            case RecallLate():
                self._on_recall_late()
            case LongerThanExpected(reason):
                if self._holders.join(Role.MAIN):
                    self._actions.append(StartTransfer(reason))
            case MainLoad(load=load):
                self._switch.main_load(load)
                self._begin_switch(now_s)
            case ModeChanged(leaning=leaning):
                self._go_on_with(self._switch.lean(leaning, in_rounds=self.phase is Phase.CATCHING_UP))
            case StopRequested():
                self._finish(FinishReason.STOP)
            case ClientGone():
                self._end("the client has gone")
            case DeadlinePassed(waited_s):
                self._fail(MeshErrorCode.DEADLINE, None, f"nothing heard for {waited_s:g} s, waiting for {self.phase.value}")
            case Wanted() | TransferDone() | PrefillProgress():
                pass  # for the timeline, or the limit on silence

    # Who speaks

    def _on_first_token(self, event: FirstToken, now_s: float) -> None:
        if self.phase is not Phase.PREFILLING:
            raise BrokenProtocol(Role.PREFILL, "a second first token")
        if event.finish is not FinishReason.STOP:
            logprobs = () if event.logprobs is None else (event.logprobs,)
            self._actions.append(show(self.log, NewTokens(Role.PREFILL, 0, (event.token,), logprobs)))
        if event.finish is not None:
            self._finish(event.finish)
            return
        if self._holders.counts_on(Role.RELAY):
            self.phase = Phase.RELAYING
        else:
            self._take_over(now_s)
        self._hear_kept()

    def _on_decoder(self, event: DecoderEvent, now_s: float) -> None:
        if self._holders.gave_up(event.role):
            return  # it crossed the abort
        if not self._holders.hears(event):
            raise BrokenProtocol(event.role, f"{type(event).__name__} after its end")
        if self.phase is Phase.PREFILLING or (self.phase is Phase.RECALLING and event.role is Role.RELAY):
            self._kept.append((event, now_s))
        else:
            self._act_on(event, now_s)

    def _hear_kept(self) -> None:
        kept, self._kept = self._kept, []
        for event, arrived_s in kept:
            if not self.over:
                self._act_on(event, arrived_s)

    def _act_on(self, event: DecoderEvent, now_s: float) -> None:
        if event.role is Role.RELAY:
            self._on_relay(event, now_s)
        else:
            self._on_main(event, now_s)

    def _on_relay(self, event: DecoderEvent, now_s: float) -> None:
        match event:
            case NewTokens():
                self._actions.append(show(self.log, event))
                self._catch_up.relay_tokens(len(event.tokens), now_s)
            case Stopped(next_index=next_index):
                if self.phase is not Phase.STOPPING:
                    raise BrokenProtocol(Role.RELAY, "Stopped without being asked")
                # A relay stopped before it had its KV does not know of index 0.
                check_end(self.log, event, max(next_index, 1))
                self.handoff = self._switch.mode
                self._take_over(now_s)
            case Finished(reason=reason, next_index=next_index):
                check_end(self.log, event, next_index)
                self._finish(reason)
            case KvReady() | Extended() | Recalled():
                pass  # it starts by itself

    def _on_main(self, event: DecoderEvent, now_s: float) -> None:
        match event:
            case KvReady():
                self._begin_switch(now_s)
            case Extended():
                self._on_extended(event, now_s)
            case Recalled() if self.phase is Phase.RECALLING or self._recall_open:
                self._on_recalled(now_s)
            case NewTokens() if self.phase is Phase.MAIN_DECODES:
                self._actions.append(show(self.log, event))
            case Finished(reason=reason, next_index=next_index) if self.phase is Phase.MAIN_DECODES:
                check_end(self.log, event, next_index)
                self._finish(reason)
            case _:
                raise BrokenProtocol(Role.MAIN, f"{type(event).__name__} while waiting for {self.phase.value}")

    # From the relay to main

    def _begin_switch(self, now_s: float) -> None:
        if self.phase is Phase.RELAYING and self._holders.has_kv(Role.MAIN) and not self._recall_open:
            self._go_on_with(self._switch.begin(self.log, now_s))

    def _on_extended(self, event: Extended, now_s: float) -> None:
        try:
            self._catch_up.extended(event, now_s)
        except Unasked as error:
            raise BrokenProtocol(Role.MAIN, str(error)) from error
        if self._recall_open:
            self._recall_open = False
            self._give_up(Role.MAIN, "it began when the relay had gone on")
        elif self.phase is Phase.CATCHING_UP:
            self._go_on_with(self._switch.next_round(self.log, now_s))
        elif self.phase is Phase.RECALLING:
            self._give_up(Role.RELAY, "main has its KV")
            self.phase = Phase.MAIN_DECODES

    def _go_on_with(self, actions: SwitchActions) -> None:
        if actions:
            self.phase = Phase.STOPPING if isinstance(actions[-1], StopRelay) else Phase.CATCHING_UP
            self._actions.extend(actions)

    def _take_over(self, now_s: float) -> None:
        self.phase = Phase.MAIN_DECODES
        self._actions.append(self._catch_up.final(self.log, now_s))

    # A relay that joins late

    def _on_kv_late(self, reason: str) -> None:
        if self._holders.has_kv(Role.MAIN) or not self._holders.join(Role.RELAY):
            return
        self._actions.append(OpenRelay(reason))
        if self.phase is Phase.MAIN_DECODES:
            self.phase = Phase.RECALLING
            self._actions.append(RecallMain())

    def _on_recalled(self, now_s: float) -> None:
        self._catch_up.recalled()
        if self._recall_open:
            self._recall_open = False
            self._begin_switch(now_s)
        elif self._holders.counts_on(Role.RELAY):
            self.phase = Phase.RELAYING
            self._hear_kept()
        else:
            self._take_over(now_s)

    def _on_recall_late(self) -> None:
        if self.phase is Phase.RECALLING and self._holders.has_kv(Role.RELAY):
            self.phase, self._recall_open = Phase.RELAYING, True
            self._hear_kept()

    # Ends, and what is not yet one

    def _on_trouble(self, event: Trouble, now_s: float) -> None:
        loss = self._holders.loss(event, first_token=self.phase is not Phase.PREFILLING)
        if loss is None:
            return
        if loss.roles == {Role.MAIN} and self._holders.counts_on(Role.RELAY) and self.phase in _RELAY_GOES_ON:
            self._go_on_without_main(loss.message)
        elif loss.roles == {Role.RELAY} and self._holders.can_spare(Role.RELAY) and not self._recall_open:
            self._go_on_without_relay(loss.message, now_s)
        elif event.role is Role.MAIN and self.log.next_index <= 1 and self._holders.join(Role.RELAY):
            self._replace_main(loss)
        elif isinstance(event, Unavailable) and self._replaced is not None:
            self._fail(self._replaced.code, Role.MAIN, self._replaced.message)
        else:
            self._fail(loss.code, event.role, loss.message)

    def _go_on_without_main(self, why: str) -> None:
        self._give_up(Role.MAIN, why)
        self._recall_open = False
        if self.phase is Phase.CATCHING_UP:
            self.phase = Phase.RELAYING
            self._actions.extend(self._catch_up.lift())
        elif self.phase is Phase.RECALLING:
            self.phase = Phase.RELAYING
            self._hear_kept()

    def _replace_main(self, loss: Loss) -> None:
        self._replaced = loss
        self._give_up(Role.MAIN, loss.message)
        self._actions.append(OpenRelay(loss.message))
        if self.phase is Phase.MAIN_DECODES:
            self.phase = Phase.RELAYING

    def _go_on_without_relay(self, why: str, now_s: float) -> None:
        self._give_up(Role.RELAY, why)
        if self.phase in (Phase.RELAYING, Phase.CATCHING_UP, Phase.STOPPING):
            self._take_over(now_s)

    def _give_up(self, role: Role, why: str) -> None:
        self._kept = [(event, arrived_s) for event, arrived_s in self._kept if event.role is not role]
        if self._holders.give_up(role):
            self._actions.append(Abort(role, why))

    def _finish(self, reason: FinishReason) -> None:
        self._end("the answer is complete", complete=True)
        self._actions.append(Finish(reason))

    def _fail(self, code: MeshErrorCode, role: Role | None, message: str) -> None:
        self._end("the request failed")
        self._actions.append(Fail(code, role, message))

    def _end(self, why: str, *, complete: bool = False) -> None:
        self.phase = Phase.OVER
        self._actions.extend(Abort(role, why, keep=complete and role is Role.MAIN) for role in self._holders.open)
