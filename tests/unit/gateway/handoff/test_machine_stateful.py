"""Any interleaving of what prefill, relay, main and the client may do: the user sees each index once, and it always ends.

With a playout between machine and user, or without one. `referee` holds what must be true.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.generation import MeshErrorCode, Tokens
from gateway.handoff.actions import (
    Abort,
    Action,
    Emit,
    Extend,
    Fail,
    Finish,
    OpenRelay,
    RecallMain,
    StartTransfer,
    StopRelay,
    ThrottleRelay,
)
from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.events import (
    ClientGone,
    Closed,
    DeadlinePassed,
    Failed,
    HandoffEvent,
    KvLate,
    LongerThanExpected,
    Lost,
    MainLoad,
    ModeChanged,
    RecallLate,
    StopRequested,
    TransferFailed,
    Unavailable,
)
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.handoff.pace import Pace
from gateway.mode import DecoderLoad, HandoffMode, Leaning
from gateway.playout import Playout
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason

from .peers import Answer, Decoder, Peer, Prefill
from .referee import Referee

# Small figures, so that a handful of tokens is worth a round.
POLICY = HandoffPolicy(itl_target_s=0.02, max_rounds=3, prior=Pace(relay_interval_s=0.02, extend_s=0.008, round_trip_s=0.02))
ANY = st.integers(0, 5)  # picks one of those to whom something can happen
DECODERS = {
    Pipeline.RELAY: [Role.RELAY, Role.MAIN],
    Pipeline.DIRECT: [Role.MAIN],
    Pipeline.SINGULAR: [Role.RELAY],
}


@dataclass(frozen=True)
class RunUp:
    turns: int
    prefilled: int  # turns in which prefill makes progress
    commands_arrive: bool
    silent: frozenset[Role]


RUN_UP = st.builds(
    RunUp,
    st.integers(0, 25),
    st.integers(0, 4),
    st.sampled_from([True, True, False]),
    st.frozensets(st.sampled_from(Role), max_size=1),
)


class Handoff(RuleBasedStateMachine):
    @initialize(
        pipeline=st.sampled_from([*Pipeline, Pipeline.DIRECT]),
        mode=st.sampled_from(HandoffMode),
        length=st.one_of(st.integers(1, 4), st.integers(30, 100), st.integers(60, 200)),
        reason=st.sampled_from(FinishReason),
        faults=st.booleans(),
        before=RUN_UP,
        wrong=st.sampled_from([True, True, False]),
        found=st.sampled_from([True, False, None]),
        after=RUN_UP,
        round_trip_s=st.one_of(st.none(), st.floats(0.0, 0.2)),
    )
    def start(
        self,
        pipeline: Pipeline,
        mode: HandoffMode,
        length: int,
        reason: FinishReason,
        faults: bool,
        before: RunUp,
        wrong: bool,
        found: bool | None,
        after: RunUp,
        round_trip_s: float | None,
    ) -> None:
        self.machine = HandoffMachine(pipeline, Leaning(mode), POLICY)
        self.playout = None if round_trip_s is None or pipeline is Pipeline.DIRECT else Playout(round_trip_s, 0.02)
        self.answer = Answer(length - 1 if reason is FinishReason.STOP else length, reason)
        self.referee = Referee(pipeline, self.answer)
        decoders = [Decoder(role, self.answer) for role in DECODERS[pipeline]]
        self.prefill = Prefill(Role.PREFILL, self.answer, jobs=[decoders])
        self.peers: list[Peer] = [self.prefill, *decoders]
        self.joining: Role | None = None  # is looked for, and not found yet
        self.for_joining: list[Action] = []  # what it is told as soon as it is found
        self.prefill_closed: Closed | None = None  # held back meanwhile, since one more job may be to come
        self.faults = faults
        self.now_s = 0.0
        self.run_up(before)
        if wrong and not self.machine.over:
            self.feed(KvLate("late") if pipeline is Pipeline.DIRECT else LongerThanExpected("long"))
            if self.joining is not None and found is not None:
                self.decoder_is_looked_for(found)
            self.run_up(after)

    def run_up(self, run_up: RunUp) -> None:
        """Start in the middle of a request: prefill so far, the relay decoding, and nothing heard of one of them."""
        for turn in range(run_up.turns):
            for peer in self.peers:
                if peer.commands and run_up.commands_arrive:
                    peer.obey()
                if peer is not self.prefill or turn < run_up.prefilled:
                    peer.progress(2, 0.0)
                if peer.role not in run_up.silent and peer.events:
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
            if events:  # a job that starts takes back that the others have closed
                self.feed(events.popleft())

    # Decoders that join

    @rule(event=st.sampled_from([KvLate("late"), RecallLate("late"), LongerThanExpected("long")]))
    def estimate_proves_wrong(self, event: HandoffEvent) -> None:
        self.feed(event)

    @precondition(lambda self: self.joining is not None and not self.machine.over)
    @rule(found=st.sampled_from([True, True, False]))
    def decoder_is_looked_for(self, found: bool) -> None:
        role, self.joining = self.joining, None
        commands, self.for_joining = self.for_joining, []
        assert role is not None
        if not found or self.prefill.down:
            self.feed(Unavailable(role, "all full"))
            if self.prefill_closed is not None:
                self.feed(self.prefill_closed)
            return
        decoder = Decoder(role, self.answer, deque(commands))
        self.peers.append(decoder)
        self.prefill.start(decoder)
        self.referee.closed.discard(Role.PREFILL)

    # Faults: in half of the runs, or the rest would hardly be seen

    @precondition(lambda self: self.faults)
    @rule(peer=ANY)
    def stream_is_lost(self, peer: int) -> None:
        lost = self.peers[peer % len(self.peers)]
        if lost.role not in self.referee.closed:
            lost.lose(Lost(lost.role, "gone"))

    @precondition(lambda self: self.faults)
    @rule(peer=ANY, job=ANY)
    def instance_fails(self, peer: int, job: int) -> None:
        failed = self.peers[peer % len(self.peers)]
        if not failed.closed:
            failure = Failed(failed.role, MeshErrorCode.ENGINE_FAILED, "broke")
            if isinstance(failed, Prefill):
                failed.fail(failure, job)
            else:
                failed.close(failure)

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
        self.referee.see(self.playout.due(self.now_s))

    @precondition(lambda self: self.faults)
    @rule(event=st.sampled_from([StopRequested(), ClientGone(), DeadlinePassed(30.0)]))
    def request_is_interrupted(self, event: HandoffEvent) -> None:
        self.feed(event)

    # The driver

    def feed(self, event: HandoffEvent) -> None:
        if self.joining is not None and event == Closed(Role.PREFILL):
            self.prefill_closed = Closed(Role.PREFILL)
            return
        was_over = self.machine.over
        self.referee.hear(event)
        actions = self.machine.handle(event, self.now_s)
        assert not (was_over and actions), "acted after the end"
        self.referee.judge(actions)
        for action in actions:
            self.perform(action)
        if self.machine.over and not was_over:
            opened = {peer.role for peer in self.peers}
            self.referee.nothing_is_left_open(event, opened, self.joining)

    def perform(self, action: Action) -> None:
        match action:
            case Emit(first_index=first_index, tokens=tokens, source=source):
                made = Tokens(first_index, tokens, source.value)
                self.referee.see([made] if self.playout is None else self.playout.arrive(made, source, self.now_s))
            case Finish() | Fail():
                self.referee.see([] if self.playout is None else self.playout.flush(self.now_s))
                assert len(self.referee.shown) == self.referee.logged, "something was kept back at the end"
            case OpenRelay() | StartTransfer():
                self.joining = Role.RELAY if isinstance(action, OpenRelay) else Role.MAIN
            case Abort(role=role):
                self.send(role, action)
            case StopRelay() | ThrottleRelay():
                self.send(Role.RELAY, action)
                if isinstance(action, StopRelay) and self.playout is not None:
                    self.playout.switch()
            case Extend() | RecallMain():
                self.send(Role.MAIN, action)

    def send(self, role: Role, command: Action) -> None:
        """To nobody where there is no handle in that role, nor will be."""
        if role is self.joining:
            self.for_joining.append(command)
        for peer in self.peers:
            if peer.role is role:
                peer.commands.append(command)

    @invariant()
    def what_is_shown_is_the_answer(self) -> None:
        if hasattr(self, "referee"):
            self.referee.shows_the_answer()

    @invariant()
    def what_is_due_is_not_held(self) -> None:
        if hasattr(self, "referee") and self.playout is not None:
            held = self.playout.in_hand
            assert held == self.referee.logged - len(self.referee.shown)
            # Held tokens are released by a timer, by the next arrival, or by the end, which is sure to come.
            assert not self.playout.done or held == 0

    def teardown(self) -> None:
        """Without another fault everybody goes on: it must come to an end, and every peer must be rid of the request."""
        if not hasattr(self, "peers"):
            return
        self.feed(MainLoad(DecoderLoad(0, 0, 8, 0.0)))
        for _ in range(2 * self.answer.length + 50):
            if self.joining is not None and not self.machine.over:
                self.decoder_is_looked_for(True)
            for peer in tuple(self.peers):
                while peer.commands:
                    peer.obey()
                peer.progress(4, 0.01)
                while peer.events:
                    self.now_s += 0.01
                    self.feed(peer.events.popleft())
        assert self.machine.over
        assert all(peer.closed for peer in self.peers)


Handoff.TestCase.settings = settings(max_examples=500, stateful_step_count=60, deadline=None)
TestHandoff = Handoff.TestCase
