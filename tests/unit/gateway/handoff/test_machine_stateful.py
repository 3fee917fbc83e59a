"""Any interleaving of what prefill, relay, main and the client may do: the user sees each index once, and it always ends.

With a playout between machine and user, or without one.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.generation import MeshErrorCode, Tokens
from gateway.handoff.actions import Abort, Action, Emit, Extend, Fail, Finish, StopRelay, ThrottleRelay
from gateway.handoff.estimate import HandoffPolicy
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
    ModeChanged,
    NewTokens,
    Stopped,
    StopRequested,
    TransferFailed,
)
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.handoff.pace import Pace
from gateway.handoff.slots import full
from gateway.mode import DecoderLoad, HandoffMode, Leaning
from gateway.playout import Playout
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason

from .peers import Answer, Decoder, Peer, Prefill, token

# Small figures, so that a handful of tokens is worth a round.
POLICY = HandoffPolicy(itl_target_s=0.02, max_rounds=3, prior=Pace(relay_interval_s=0.02, extend_s=0.008, round_trip_s=0.02))
ANY = st.integers(0, 5)  # picks one of those to whom something can happen


class Handoff(RuleBasedStateMachine):
    @initialize(
        pipeline=st.sampled_from([Pipeline.RELAY, Pipeline.RELAY, Pipeline.DIRECT]),
        mode=st.sampled_from(HandoffMode),
        length=st.one_of(st.integers(1, 4), st.integers(30, 100), st.integers(60, 200)),
        reason=st.sampled_from(FinishReason),
        faults=st.booleans(),
        before=st.integers(0, 25),
        prefilled=st.integers(0, 4),
        silent=st.sets(st.sampled_from(Role), max_size=1),
        round_trip_s=st.one_of(st.none(), st.floats(0.0, 0.2)),
    )
    def start(
        self,
        pipeline: Pipeline,
        mode: HandoffMode,
        length: int,
        reason: FinishReason,
        faults: bool,
        before: int,
        prefilled: int,
        silent: set[Role],
        round_trip_s: float | None,
    ) -> None:
        self.machine = HandoffMachine(pipeline, Leaning(mode), POLICY)
        self.playout = None if round_trip_s is None or pipeline is Pipeline.DIRECT else Playout(round_trip_s, 0.02)
        self.logged = 0  # tokens that the machine has emitted
        self.answer = Answer(length - 1 if reason is FinishReason.STOP else length, reason)
        roles = [Role.RELAY, Role.MAIN] if pipeline is Pipeline.RELAY else [Role.MAIN]
        decoders = [Decoder(role, self.answer) for role in roles]
        self.prefill = Prefill(Role.PREFILL, self.answer, decoders=decoders)
        self.peers: list[Peer] = [self.prefill, *decoders]
        self.heard_whole: set[Role] = set()
        self.heard_closed: set[Role] = set()
        self.aborted: list[Role] = []
        self.shown: list[int] = []
        self.ends: list[Finish | Fail] = []
        self.interrupted = False  # by the client or the deadline
        self.main_load: DecoderLoad | None = None  # as last told
        self.handing_over = pipeline is Pipeline.DIRECT  # main was given something, or the relay told to stop
        self.relay_stops = self.handing_over
        self.troubled = False  # an instance failed or was lost
        self.faults = faults
        self.now_s = 0.0
        self.run_up(before, prefilled, silent)

    def run_up(self, turns: int, prefilled: int, silent: set[Role]) -> None:
        """Start in the middle of a request: prefill so far, the relay decoding, and nothing heard of one of them."""
        for turn in range(turns):
            for peer in self.peers:
                if peer is not self.prefill or turn < prefilled:
                    peer.progress(2, 0.0)
                if peer.role not in silent and peer.events:
                    self.now_s += 0.02
                    self.feed(peer.events.popleft())

    # What peers and network do

    @rule(peer=ANY, count=st.integers(1, 12), extend_s=st.floats(0.0, 0.02))
    def peer_makes_progress(self, peer: int, count: int, extend_s: float) -> None:
        busy = [one for one in self.peers if not one.closed]
        if busy:
            busy[peer % len(busy)].progress(count, extend_s)

    @precondition(lambda self: any(peer.commands for peer in self.peers))
    @rule(peer=ANY)
    def command_arrives(self, peer: int) -> None:
        waiting = [one for one in self.peers if one.commands]
        waiting[peer % len(waiting)].obey()

    @precondition(lambda self: any(peer.events for peer in self.peers))
    @rule(peer=ANY, after_s=st.floats(0.0, 0.1), all_of_them=st.booleans())
    def events_arrive(self, peer: int, after_s: float, all_of_them: bool) -> None:
        self.now_s += after_s
        waiting = [one for one in self.peers if one.events]
        events = waiting[peer % len(waiting)].events
        for _ in range(len(events) if all_of_them else 1):
            self.feed(events.popleft())

    # Faults: in half of the runs, or the rest would hardly be seen

    @precondition(lambda self: self.faults)
    @rule(peer=ANY)
    def stream_is_lost(self, peer: int) -> None:
        lost = self.peers[peer % len(self.peers)]
        if lost.role not in self.heard_closed:
            self.troubled = True
            lost.lose(Lost(lost.role, "gone"))

    @precondition(lambda self: self.faults)
    @rule(peer=ANY)
    def instance_fails(self, peer: int) -> None:
        failed = self.peers[peer % len(self.peers)]
        if not failed.closed:
            self.troubled = True
            failed.close(Failed(failed.role, MeshErrorCode.ENGINE_FAILED, "broke"))
            if failed is self.prefill:
                failed.events.append(Closed(failed.role))

    @precondition(lambda self: not self.prefill.closed and self.prefill.sampled)
    @rule(decoder=ANY)
    def answer_to_the_commit_is_lost(self, decoder: int) -> None:
        target = self.prefill.decoders[decoder % len(self.prefill.decoders)]
        if target.whole:
            self.prefill.events.append(TransferFailed(target.role, "lost"))

    @precondition(lambda self: self.faults and not self.prefill.closed)
    @rule(decoder=ANY)
    def transfer_is_refused(self, decoder: int) -> None:
        target = self.prefill.decoders[decoder % len(self.prefill.decoders)]
        if not target.whole and not target.closed:
            self.troubled = True
            self.prefill.events.append(TransferFailed(target.role, "refused"))
            target.close(Failed(target.role, MeshErrorCode.KV_REFUSED, "refused"))

    # What comes from elsewhere

    @rule(mode=st.sampled_from(HandoffMode), firm=st.booleans())
    def mode_changes(self, mode: HandoffMode, firm: bool) -> None:
        self.feed(ModeChanged(Leaning(mode, firm)))

    @rule(running=st.integers(0, 8), step_s=st.floats(0.0, 0.05))
    def main_tells_its_load(self, running: int, step_s: float) -> None:
        self.feed(MainLoad(DecoderLoad(running, 0, 8, 0.0, step_s)))

    @precondition(lambda self: self.playout is not None and self.playout.next_due_s is not None)
    @rule(late_s=st.floats(0.0, 0.05))
    def playout_is_due(self, late_s: float) -> None:
        assert self.playout is not None
        due_s = self.playout.next_due_s
        assert due_s is not None
        self.now_s = max(self.now_s, due_s) + late_s
        self.see(self.playout.due(self.now_s))

    @precondition(lambda self: self.faults)
    @rule(event=st.sampled_from([StopRequested(), ClientGone(), DeadlinePassed(30.0)]))
    def request_is_interrupted(self, event: HandoffEvent) -> None:
        self.interrupted = True
        self.feed(event)

    # The driver

    def feed(self, event: HandoffEvent) -> None:
        was_over = self.machine.over
        if isinstance(event, KvReady | NewTokens):
            self.heard_whole.add(event.role)
        if isinstance(event, TransferFailed):
            self.troubled = self.troubled or event.role not in self.heard_whole
        if isinstance(event, MainLoad):
            self.main_load = event.load
        actions = self.machine.handle(event, self.now_s)
        if isinstance(event, Stopped | Finished | Lost | Closed) or (
            isinstance(event, Failed) and event.role is not Role.PREFILL
        ):
            self.heard_closed.add(event.role)
        assert not (was_over and actions), "acted after the end"
        for action in actions:
            assert not self.ends, "acted after the end"
            self.perform(action)
        if self.machine.over and not was_over:
            self.check_end(event)

    def perform(self, action: Action) -> None:
        if isinstance(action, Extend | StopRelay):
            assert self.handing_over or self.main_load is None or not full(self.main_load), "main has no slot"
            self.handing_over = True
            self.relay_stops = self.relay_stops or isinstance(action, StopRelay)
        if isinstance(action, Fail):
            assert action.role is not Role.MAIN or self.relay_stops, "the relay could have gone on"
        match action:
            case Emit(first_index=first_index, tokens=tokens, source=source):
                assert first_index == self.logged
                self.logged += len(tokens)
                made = Tokens(first_index, tokens, source.value)
                self.see([made] if self.playout is None else self.playout.arrive(made, source, self.now_s))
            case Finish() | Fail():
                self.see([] if self.playout is None else self.playout.flush(self.now_s))
                assert len(self.shown) == self.logged, "something was kept back at the end"
                self.ends.append(action)
            case Abort(role=role):
                self.aborted.append(role)
                self.peer(role).commands.append(action)
            case StopRelay() | ThrottleRelay():
                self.peer(Role.RELAY).commands.append(action)
                if isinstance(action, StopRelay) and self.playout is not None:
                    self.playout.switch()
            case _:
                self.peer(Role.MAIN).commands.append(action)

    def see(self, out: list[Tokens]) -> None:
        for tokens in out:
            assert tokens.first_index == len(self.shown)
            self.shown.extend(tokens.tokens)

    def peer(self, role: Role) -> Peer:
        return next(peer for peer in self.peers if peer.role is role)

    def check_end(self, last: HandoffEvent) -> None:
        assert len(self.ends) == (0 if isinstance(last, ClientGone) else 1)
        assert len(set(self.aborted)) == len(self.aborted), "each handle once"
        still_open = {peer.role for peer in self.peers} - self.heard_closed
        assert still_open <= set(self.aborted) <= still_open | {Role.MAIN}, "main may have been given up before"
        for end in self.ends:
            if isinstance(end, Fail):
                assert self.troubled or self.interrupted
            elif not isinstance(last, StopRequested):
                assert end.reason is self.answer.reason
                assert len(self.shown) == self.answer.length

    @invariant()
    def what_is_shown_is_the_answer(self) -> None:
        if hasattr(self, "shown"):
            assert self.shown == [token(index) for index in range(len(self.shown))]
            assert len(self.shown) <= self.logged <= self.answer.length

    @invariant()
    def what_is_due_is_not_held(self) -> None:
        if hasattr(self, "shown") and self.playout is not None:
            held = self.playout.in_hand
            assert held == self.logged - len(self.shown)
            # Held tokens are released by a timer, by the next arrival, or by the end, which is sure to come.
            assert not self.playout.done or held == 0

    def teardown(self) -> None:
        """Without another fault everybody goes on: it must come to an end, and every peer must be rid of the request."""
        if not hasattr(self, "peers"):
            return
        self.feed(MainLoad(DecoderLoad(0, 0, 8, 0.0)))
        for _ in range(2 * self.answer.length + 50):
            for peer in self.peers:
                while peer.commands:
                    peer.obey()
                peer.progress(4, 0.01)
                while peer.events:
                    self.now_s += 0.01
                    self.feed(peer.events.popleft())
        assert self.machine.over
        assert all(peer.closed for peer in self.peers)


Handoff.TestCase.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)
TestHandoff = Handoff.TestCase
