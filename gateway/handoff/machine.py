"""The handoff of one request from relay to main: events in, actions out.

Called by `gateway.mesh.request` with everything that happens to a request; owns its token log and decides who makes the next
token. Never awaits, reads a clock or talks to anyone: times arrive with the events.

Theory of operation
    Output index 0 is sampled by prefill. In pipeline `relay` the relay starts from it by itself, as soon as its KV is whole, and
    main takes over when its own KV has crossed the slow link. What main is given then are token ids, which it computes in one
    pass (Extend); the last id always goes with `then_decode`, so that main has one to decode from.
      One-Shot: on main's KvReady stop the relay; on Stopped(n) extend with everything and decode.
      Catch-Up: on main's KvReady extend with what there is, less the last id, while the relay goes on; on each Extended with what
        came since; when `estimate.next_move` says so, go on as One-Shot does.
    Which one is settled on main's KvReady, by `mode.settled`, and again whenever the relay leans another way. One-Shot in the
    end is also what Catch-Up comes to where one extend of everything fits, or where rounds would not converge.
    In pipeline `direct` there is no relay: index 0 is shown at once and sent ahead to main, which keeps the Extend until its KV
    is whole.

      phase         relay     main                 leaves on                 to
      PREFILLING    (early)   (early)              FirstToken                RELAYING, or MAIN_DECODES (direct)
      RELAYING      decodes   KV, then a slot      main KvReady, MainLoad    CATCHING_UP or STOPPING
      CATCHING_UP   decodes   computes a round     main Extended             CATCHING_UP or STOPPING
                                                   ModeChanged               CATCHING_UP or STOPPING
      STOPPING      ends      idle or computing    relay Stopped             MAIN_DECODES
      MAIN_DECODES  closed    extends, decodes     main Finished             OVER
      any                                          an end, see rule 3        OVER

Rules
    1. Indices are shown once and in order. The log takes only its next index; anything else from a decoder fails the request and
       is not shown.
    2. Streams are not ordered among each other: a decoder may speak before prefill's FirstToken is here. What it says is kept,
       and heard right after index 0.
    3. Whoever makes the last token ends the request: prefill (at index 0), the relay at any time before its Stopped, or main.
       A stop string, the client leaving, a deadline, and the loss or failure of an instance that is still needed end it too.
       An end of sequence is not a token of the answer: decoders do not report it, prefill's is not shown.
    4. The end is one Finish or one Fail (neither where the client has gone), preceded by an Abort for every handle that is not
       closed. Nothing is acted upon after it.
    5. An instance that is not needed any more may go: a relay that has ended, prefill when every decoder has its KV.
    6. A relay is not stopped, and main given nothing, while main has no slot for the request: it would freeze in main's queue.
    7. While the relay decodes main is not needed: if it fails, or its KV can't reach it, the relay makes the answer to its end.
"""

from __future__ import annotations

import enum

from gateway.generation import MeshErrorCode
from gateway.handoff.actions import Abort, Action, Emit, Fail, Finish, StopRelay
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
    KvReady,
    Lost,
    MainLoad,
    ModeChanged,
    NewTokens,
    PrefillProgress,
    Stopped,
    StopRequested,
    TransferDone,
    TransferFailed,
    Wanted,
)
from gateway.handoff.holders import DecoderEvent, Holders, Trouble
from gateway.handoff.pace import Measured
from gateway.handoff.phase import BrokenProtocol, Phase
from gateway.handoff.slots import full
from gateway.mode import DecoderLoad, HandoffMode, Leaning, settled
from gateway.tokenlog import OutOfOrder, TokenLog
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason


class Pipeline(enum.Enum):
    RELAY = "relay"
    DIRECT = "direct"


class HandoffMachine:
    def __init__(self, pipeline: Pipeline, leaning: Leaning, policy: HandoffPolicy, *, score: bool = False) -> None:
        """`leaning` is the relay's at the start. `score`: main is to compare the relay's tokens with its own sampler's."""
        self.log = TokenLog()
        self.phase = Phase.PREFILLING
        self.handoff: HandoffMode | None = None  # how main took over from the relay, once it has
        self._relayed = pipeline is Pipeline.RELAY
        self._leaning = leaning
        self._main_load: DecoderLoad | None = None
        self._main_ready = False  # its KV is whole
        self._without_main = False  # given up: the relay goes on to the end
        self._catch_up = CatchUp(policy, score=score and self._relayed)
        self._cut_short = False  # a Catch-Up that the relay's load turned into One-Shot
        self._holders = Holders([Role.PREFILL, Role.RELAY, Role.MAIN] if self._relayed else [Role.PREFILL, Role.MAIN])
        self._early: list[tuple[DecoderEvent, float]] = []  # heard before index 0
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
                self._show(event)  # what most events are, so the way to it is short
            case FirstToken():
                self._on_first_token(event, now_s)
            case KvReady() | Extended() | NewTokens() | Stopped() | Finished():
                self._on_decoder(event, now_s)
            case TransferFailed() | Failed() | Closed() | Lost():
                self._on_trouble(event)
            case MainLoad(load=load):
                self._on_main_load(load, now_s)
            case ModeChanged(leaning=leaning):
                self._on_leaning(leaning)
            case StopRequested():
                self._finish(FinishReason.STOP)
            case ClientGone():
                self._end("the client has gone")
            case DeadlinePassed(waited_s):
                self._fail(MeshErrorCode.DEADLINE, None, f"nothing heard for {waited_s:g} s, waiting for {self.phase.value}")
            case Wanted() | TransferDone() | PrefillProgress():
                pass  # for the timeline, or the limit on silence

    def _on_first_token(self, event: FirstToken, now_s: float) -> None:
        if self.phase is not Phase.PREFILLING:
            raise BrokenProtocol(Role.PREFILL, "a second first token")
        if event.finish is not FinishReason.STOP:
            logprobs = () if event.logprobs is None else (event.logprobs,)
            self._show(NewTokens(Role.PREFILL, 0, (event.token,), logprobs))
        if event.finish is not None:
            self._finish(event.finish)
            return
        if self._relayed:
            self.phase = Phase.RELAYING
        else:
            self._take_over(now_s)
        for kept, arrived_s in self._early:
            if not self.over:
                self._act_on(kept, arrived_s)
        self._early.clear()

    def _on_decoder(self, event: DecoderEvent, now_s: float) -> None:
        if self._without_main and event.role is Role.MAIN:
            return  # it crossed the abort
        if not self._holders.hears(event):
            raise BrokenProtocol(event.role, f"{type(event).__name__} after its end")
        if self.phase is Phase.PREFILLING:
            self._early.append((event, now_s))
        else:
            self._act_on(event, now_s)

    def _act_on(self, event: DecoderEvent, now_s: float) -> None:
        if event.role is Role.RELAY:
            self._on_relay(event, now_s)
        else:
            self._on_main(event, now_s)

    def _on_relay(self, event: DecoderEvent, now_s: float) -> None:
        match event:
            case NewTokens():
                self._show(event)
                self._catch_up.relay_tokens(len(event.tokens), now_s)
            case Stopped(next_index=next_index):
                if self.phase is not Phase.STOPPING:
                    raise BrokenProtocol(Role.RELAY, "Stopped without being asked")
                # A relay stopped before it had its KV does not know of index 0.
                self._check_next_index(event, max(next_index, 1))
                self._take_over(now_s)
            case Finished(reason=reason, next_index=next_index):
                self._check_next_index(event, next_index)
                self._finish(reason)
            case KvReady() | Extended():
                pass  # it starts by itself

    def _on_main(self, event: DecoderEvent, now_s: float) -> None:
        if isinstance(event, KvReady):
            self._main_ready = True
            self._begin_handoff(now_s)
            return
        if isinstance(event, Extended):
            self._on_extended(event, now_s)
            return
        if self.phase is not Phase.MAIN_DECODES or isinstance(event, Stopped):
            raise BrokenProtocol(Role.MAIN, f"{type(event).__name__} while waiting for {self.phase.value}")
        if isinstance(event, NewTokens):
            self._show(event)
        else:
            self._check_next_index(event, event.next_index)
            self._finish(event.reason)

    def _on_main_load(self, load: DecoderLoad, now_s: float) -> None:
        self._main_load = load
        self._catch_up.main_step(load.step_s)
        self._begin_handoff(now_s)

    def _begin_handoff(self, now_s: float) -> None:
        if self.phase is not Phase.RELAYING or not self._main_ready:
            return
        if self._main_load is not None and full(self._main_load):
            return  # until a load with a free slot is told
        if settled(self._leaning, self._main_load) is HandoffMode.ONE_SHOT:
            self._stop_relay()
        else:
            self._next_round(now_s)

    def _on_extended(self, event: Extended, now_s: float) -> None:
        try:
            self._catch_up.extended(event, now_s)
        except Unasked as error:
            raise BrokenProtocol(Role.MAIN, str(error)) from error
        if self.phase is Phase.CATCHING_UP:
            self._next_round(now_s)

    def _next_round(self, now_s: float) -> None:
        round_actions = self._catch_up.next_round(self.log, now_s)
        if round_actions:
            self.phase = Phase.CATCHING_UP
            self._actions.extend(round_actions)
        else:
            self._stop_relay()

    def _on_leaning(self, leaning: Leaning) -> None:
        self._leaning = leaning
        if self.phase is Phase.CATCHING_UP and settled(leaning, self._main_load) is HandoffMode.ONE_SHOT:
            self._cut_short = True
            self._stop_relay()

    def _stop_relay(self) -> None:
        self.phase = Phase.STOPPING
        self._actions.append(StopRelay())

    def _take_over(self, now_s: float) -> None:
        self.phase = Phase.MAIN_DECODES
        if self._relayed:
            caught_up = self._catch_up.rounds > 0 and not self._cut_short
            self.handoff = HandoffMode.CATCH_UP if caught_up else HandoffMode.ONE_SHOT
        self._actions.append(self._catch_up.final(self.log, now_s))

    def _show(self, event: NewTokens) -> None:
        if event.logprobs and len(event.logprobs) != len(event.tokens):
            raise BrokenProtocol(event.role, f"{len(event.logprobs)} logprobs for {len(event.tokens)} tokens")
        try:
            self.log.append(event.first_index, event.tokens)
        except OutOfOrder as error:
            raise BrokenProtocol(event.role, str(error)) from error
        self._actions.append(Emit(event.first_index, event.tokens, event.role, event.logprobs))

    def _check_next_index(self, event: Stopped | Finished, next_index: int) -> None:
        if next_index != self.log.next_index:
            text = f"{type(event).__name__} at index {next_index} after tokens up to {self.log.next_index}"
            raise BrokenProtocol(event.role, text)

    def _on_trouble(self, event: Trouble) -> None:
        fatal = self._holders.fatal(event, first_token=self.phase is not Phase.PREFILLING)
        if fatal is None:
            return
        if self._relay_suffices(event):
            self._go_on_without_main(fatal[1])
        else:
            self._fail(fatal[0], event.role, fatal[1])

    def _relay_suffices(self, trouble: Trouble) -> bool:
        if not self._relayed:
            return False
        if trouble.role is Role.MAIN:
            return self.phase in (Phase.PREFILLING, Phase.RELAYING, Phase.CATCHING_UP)
        # Of prefill, after its token, main alone may still have needed something.
        return trouble.role is Role.PREFILL and self.phase is Phase.RELAYING and self._holders.has_kv(Role.RELAY)

    def _go_on_without_main(self, why: str) -> None:
        self._without_main, self._main_ready = True, False
        self._early = [(event, at_s) for event, at_s in self._early if event.role is not Role.MAIN]
        if self._holders.give_up(Role.MAIN):
            self._actions.append(Abort(Role.MAIN, why))
        if self.phase is Phase.CATCHING_UP:
            self.phase = Phase.RELAYING
            self._actions.extend(self._catch_up.lift())

    def _finish(self, reason: FinishReason) -> None:
        self._end("the answer is complete")
        self._actions.append(Finish(reason))

    def _fail(self, code: MeshErrorCode, role: Role | None, message: str) -> None:
        self._end("the request failed")
        self._actions.append(Fail(code, role, message))

    def _end(self, why: str) -> None:
        self.phase = Phase.OVER
        self._actions.extend(Abort(role, why) for role in self._holders.open)
