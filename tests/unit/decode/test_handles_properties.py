"""The handle table against a model of the engine and the receiver: any interleaving of commands, KV and steps."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdd.decode.actions import (
    AbortSeq,
    Action,
    AdmitKv,
    CancelKv,
    ExtendSeq,
    KeepOutput,
    OpenSeq,
    ReleaseKv,
    StopSeq,
    ThrottleSeq,
)
from pdd.decode.commands import Rules
from pdd.decode.handles import HandleTable
from pdd.engine.base import Aborted, EngineFault, Extended, Failed, Finished, FinishReason, Retained, Stopped
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.sampling import SamplingParams
from pdd.transfer.base import Received, Refusal
from pdd.v1 import decode_pb2

HANDLES = st.integers(1, 3)
MAX_TOKENS = 12


class HandleTableMachine(RuleBasedStateMachine):
    role = Rules("main", takes_handoff=True, decodes_on_commit=False, retains_output=True, context_tokens=64)

    def __init__(self) -> None:
        super().__init__()
        self.table = HandleTable(self.role)
        self.seqs = 0
        self.expected: dict[RequestId, int] = {}  # the receiver's admissions, by their handle
        self.payloads: set[RequestId] = set()  # whole KV that the receiver keeps
        self.open: dict[int, list[ExtendSeq]] = {}  # the engine's sequences and the extends they owe
        self.decoding: set[int] = set()
        self.verdicts: dict[int, Aborted | Stopped] = {}  # told to end, not yet answered
        self.lives: dict[int, list[str]] = {}  # what each handle was told, since its last good Admit
        self.ended: set[int] = set()
        self.kept: list[RequestId] = []  # whose output was kept

    # what the table asks for

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case AdmitKv(handle, spec):
                    self.expected[spec.request] = handle
                    self.lives[handle] = []
                case CancelKv(request):
                    del self.expected[request]
                case ReleaseKv(request):
                    self.payloads.remove(request)
                case KeepOutput(request):
                    self.kept.append(request)
                case OpenSeq(seq):
                    assert seq not in self.open
                    self.open[seq] = []
                case ExtendSeq(seq):
                    assert seq not in self.decoding, "extended while it decodes"
                    self.open[seq].append(action)
                    if action.then_decode:
                        self.decoding.add(seq)
                case AbortSeq(seq):
                    self.verdicts[seq] = Aborted(seq)
                case StopSeq(seq):
                    self.verdicts.setdefault(seq, Stopped(seq, 0))
                case ThrottleSeq(seq):
                    assert seq in self.open
                case decode_pb2.OpeningEvent(handle=handle):
                    self.lives[handle].append("opening")
                case decode_pb2.ClosingEvent(handle=handle):
                    self.lives.setdefault(handle, []).append("closing")
                    self.ended.add(handle)

    # commands

    @rule(handle=HANDLES)
    def admit(self, handle: int) -> None:
        self.seqs += 1
        spec = RequestSpec(RequestId(1, self.seqs), (1, 2), SamplingParams(max_tokens=MAX_TOKENS, seed=0), "", 1.0)
        self.carry_out(self.table.admit(handle, spec, self.seqs))

    @rule(handle=HANDLES, first=st.integers(0, 4), count=st.integers(0, 4), then_decode=st.booleans())
    def extend(self, handle: int, first: int, count: int, then_decode: bool) -> None:
        self.carry_out(self.table.extend(handle, first, [9] * count, then_decode))

    @rule(handle=HANDLES)
    def throttle(self, handle: int) -> None:
        self.carry_out(self.table.throttle(handle, 0.1))

    @rule(handle=HANDLES)
    def stop(self, handle: int) -> None:
        self.carry_out(self.table.stop(handle))

    @rule(handle=HANDLES)
    def recall(self, handle: int) -> None:
        actions = self.table.recall(handle)
        if handle in self.expected.values() and self.role.takes_handoff:
            (answer,) = actions
            assert isinstance(answer, decode_pb2.OpeningEvent)
            assert answer.HasField("recalled")
        self.carry_out(actions)

    @rule(handle=HANDLES, keep=st.booleans())
    def abort(self, handle: int, keep: bool) -> None:
        self.carry_out(self.table.abort(handle, keep=keep))

    # the receiver

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), final=st.booleans())
    def kv_arrives(self, data: st.DataObject, final: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.expected)))
        self.payloads.add(request)
        self.carry_out(self.table.ready(self.expected.pop(request), Received(request, (b"",), 42, final)))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def kv_fails(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.expected)))
        self.carry_out(self.table.kv_failed(self.expected.pop(request), Refusal.CHECKSUM_MISMATCH, ""))

    # the engine

    @precondition(lambda self: any(self.open.values()))
    @rule(data=st.data())
    def step_extends(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq, owed in self.open.items() if owed)))
        extend = self.open[seq].pop(0)
        self.carry_out(self.table.extended(Extended(seq, extend.first_index + len(extend.ids), 1, 0.1)))

    @precondition(lambda self: any(not self.open[seq] for seq in self.decoding))
    @rule(data=st.data())
    def step_decodes(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq in self.decoding if not self.open[seq])))
        handle = self.table.decoding(seq)
        if handle is not None:
            self.lives[handle].append("token")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kind=st.sampled_from(("verdict", "finished", "failed")))
    def closes(self, data: st.DataObject, kind: str) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        verdict = self.verdicts.get(seq)
        if kind == "verdict" and verdict is not None:
            event: Aborted | Stopped | Finished | Failed = verdict
        elif kind == "failed":
            event = Failed(seq, EngineFault("broken"))
        elif seq in self.decoding:
            event = Finished(seq, FinishReason.LENGTH, 1)
        else:
            return
        if self.role.retains_output and isinstance(event, Stopped | Finished):
            self.carry_out(self.table.retained(Retained(seq, (1, 2), 0, (b"",))))
            assert self.kept.pop() == RequestId(1, seq), "it belongs to the sequence's own request"
        del self.open[seq]
        self.decoding.discard(seq)
        self.verdicts.pop(seq, None)
        self.carry_out(self.table.closed(event))

    # what always holds

    @invariant()
    def each_handle_hears_openings_then_tokens_then_closings(self) -> None:
        rank = {"opening": 0, "token": 1, "closing": 2}
        for told in self.lives.values():
            assert told == sorted(told, key=rank.__getitem__)

    @invariant()
    def a_live_handle_holds_something_or_waits_for_its_gateway(self) -> None:
        assert len(self.table) >= len(self.expected) + len(self.open)

    def teardown(self) -> None:
        """The stream is lost: whatever was going on, the engine's answers leave nothing held."""
        self.carry_out(self.table.abort_all())
        for seq in tuple(self.open):
            assert seq in self.verdicts
            del self.open[seq]
            self.carry_out(self.table.closed(Aborted(seq)))
        assert (len(self.table), self.expected, self.payloads) == (0, {}, set())


class RelayTableMachine(HandleTableMachine):
    role = Rules("relay", takes_handoff=False, decodes_on_commit=True, retains_output=False, context_tokens=64)


HandleTableMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
RelayTableMachine.TestCase.settings = HandleTableMachine.TestCase.settings
TestMainTable = HandleTableMachine.TestCase
TestRelayTable = RelayTableMachine.TestCase
