"""One attached gateway at a decoder: carries out what its handle table decides, and collects what it is owed.

Made by the decoder for each stream. Owns the stream's handles and its outbox; touches engine, receiver and prefix cache only
through their plain calls, so nothing here waits. When the stream ends, everything held for its handles is let go of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import grpc

from pdd.decode.actions import (
    AbortSeq,
    Action,
    AdmitKv,
    CancelKv,
    EngineAction,
    ExtendSeq,
    KeepOutput,
    OpenSeq,
    ReleaseKv,
    StopSeq,
    ThrottleSeq,
)
from pdd.decode.commands import Rules, spec_of_admit
from pdd.decode.events import EngineClosing
from pdd.decode.frames import Outbox
from pdd.decode.handles import HandleTable
from pdd.decode.observer import DecoderObserver, UnobservedDecoder
from pdd.decode.traces import HandleTraces
from pdd.engine.base import Engine, Extended, KvSource, Retained, SeqId, TokenOut
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.request_proto import RequestSpec
from pdd.rpc.attach import Attachment, StreamEnd
from pdd.transfer.base import Received, Refusal, TransferRefused
from pdd.transfer.receiver import Receiver
from pdd.v1 import decode_pb2


class Session:
    """`seqs` gives sequence ids that are fresh within the engine; `routes` says whose each is, until the engine has closed it."""

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        rules: Rules,
        cache: PrefixCache,
        seqs: Iterator[SeqId],
        routes: MutableMapping[SeqId, Session],
        observer: DecoderObserver | None = None,
        traces: HandleTraces | None = None,
    ) -> None:
        self.attachment = Attachment()
        self.step = 0  # the engine's counter
        self._engine = engine
        self._receiver = receiver
        self._rules = rules
        self._cache = cache
        self._seqs = seqs
        self._routes = routes
        self._table = HandleTable(rules)
        self._outbox = Outbox()
        self._observer = observer or UnobservedDecoder()
        self._traces = traces
        self._slotless: dict[SeqId, float | None] = {}  # since when each wants a slot; None: not yet

    # ── the stream ──

    def accept(self, command: decode_pb2.DecodeCommand) -> None:
        match command.WhichOneof("command"):
            case "admit":
                self._carry_out(self._admitted(command.admit))
            case "extend":
                asked = command.extend
                self._carry_out(self._table.extend(asked.handle, asked.first_index, asked.ids, asked.then_decode, asked.score))
            case "recall":
                self._carry_out(self._table.recall(command.recall.handle))
            case "throttle":
                self._carry_out(self._table.throttle(command.throttle.handle, command.throttle.min_interval_us / 1e6))
            case "stop":
                self._carry_out(self._table.stop(command.stop.handle))
            case "abort":
                self._carry_out(self._table.abort(command.abort.handle, keep=command.abort.keep))
            case "detach":
                raise StreamEnd(grpc.StatusCode.OK)
            case other:
                raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, f"a command of {other or 'an unknown kind'} has no place here")

    def take(self) -> decode_pb2.DecodeFrame | None:
        return self._outbox.take(self.step, load_of(self._engine, self._receiver))

    def close(self) -> None:
        self._carry_out(self._table.abort_all())
        self._outbox.clear()

    # ── the engine ──

    def opening(self, event: Extended | Retained) -> None:
        """What comes before the tokens of its step."""
        if isinstance(event, Retained):
            self._carry_out(self._table.retained(event))
            return
        asked_s = self._slotless.pop(event.seq, None)
        if asked_s is not None:
            self._observer.slot_taken(max(0.0, asyncio.get_running_loop().time() - asked_s - event.compute_s))
        self._observer.extended(event)
        self._carry_out(self._table.extended(event))

    def token(self, out: TokenOut) -> None:
        handle = self._table.decoding(out.seq)
        if handle is not None:
            self._outbox.token(handle, out.index, out.token, out.logprobs)

    def closed(self, event: EngineClosing) -> None:
        self._slotless.pop(event.seq, None)
        self._carry_out(self._table.closed(event))

    def stepped(self, step: int) -> None:
        """A step was dispatched; something may be due."""
        self.step = step
        self._due()

    # ── the receiver, by way of a handle's listener ──

    def wanted(self, handle: int, missing_blocks: int, missing_bytes: int) -> None:
        self._carry_out(self._table.wanted(handle, missing_blocks, missing_bytes))

    def ready(self, handle: int, received: Received) -> None:
        self._carry_out(self._table.ready(handle, received))

    def kv_failed(self, handle: int, reason: Refusal | None, message: str) -> None:
        self._carry_out(self._table.kv_failed(handle, reason, message))

    # ── shared ──

    def _admitted(self, message: decode_pb2.Admit) -> list[Action]:
        try:
            spec = spec_of_admit(message, self._rules)
        except ValueError as error:
            return self._table.refuse(message.handle, str(error))
        return self._table.admit(message.handle, spec, next(self._seqs))

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if self._traces is not None:
                self._traces.note(action, asyncio.get_running_loop().time())
            match action:
                case decode_pb2.OpeningEvent():
                    self._outbox.open(action)
                case decode_pb2.ClosingEvent():
                    self._outbox.close(action)
                case AdmitKv(handle, spec):
                    self._expect_kv(handle, spec)
                case CancelKv(request):
                    self._receiver.cancel(request)
                case ReleaseKv(request):
                    self._receiver.release(request)
                case KeepOutput():
                    self._keep(action)
                case _:
                    self._drive(action)
        self._due()

    def _drive(self, action: EngineAction) -> None:
        match action:
            case OpenSeq(seq, spec, payloads):
                self._routes[seq], self._slotless[seq] = self, None
                self._engine.open(seq, spec.prompt, spec.sampling, KvSource(payloads), self._rules.retains_output)
            case ExtendSeq(seq, first_index, ids, then_decode, score):
                if self._slotless.get(seq, 0.0) is None:
                    self._slotless[seq] = asyncio.get_running_loop().time()
                self._engine.extend(seq, first_index, ids, then_decode, score)
            case ThrottleSeq(seq, min_interval_s):
                self._engine.throttle(seq, min_interval_s)
            case StopSeq(seq):
                self._engine.stop(seq)
            case AbortSeq(seq):
                self._engine.abort(seq)

    def _expect_kv(self, handle: int, spec: RequestSpec) -> None:
        listener = _HandleListener(self, handle)
        try:
            self._receiver.admit(spec.request, spec.prompt, spec.salt, spec.lease_s, listener)
        except TransferRefused as refusal:
            self._carry_out(self._table.kv_failed(handle, refusal.reason, str(refusal)))
        except ValueError as error:
            self._carry_out(self._table.not_admitted(handle, f"request: {error}"))

    def _keep(self, output: KeepOutput) -> None:
        layout = self._engine.layout
        prefix = prefix_of(output.ids, layout.block_tokens, output.salt)
        self._cache.keep_payloads(output.request, prefix, output.first_block, output.payloads, layout.block_bytes)

    def _due(self) -> None:
        if self._outbox.overflowing and not self.attachment.ended:
            text = f"{self._outbox.waiting} tokens and events wait unread: read frames as they come, then attach again"
            self.attachment.end(StreamEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        self.attachment.wake()


@dataclass(frozen=True, slots=True)
class _HandleListener:
    """Hears of one handle's KV."""

    session: Session
    handle: int

    def wanted(self, missing_blocks: int, missing_bytes: int) -> None:
        self.session.wanted(self.handle, missing_blocks, missing_bytes)

    def ready(self, received: Received) -> None:
        self.session.ready(self.handle, received)

    def failed(self, reason: Refusal | None, message: str) -> None:
        self.session.kv_failed(self.handle, reason, message)


def load_of(engine: Engine, receiver: Receiver) -> decode_pb2.DecodeLoad:
    """A decoder's load; its KV memory is the scarcer of the engine's cells and the receiver's bytes."""
    load = engine.load()
    return decode_pb2.DecodeLoad(
        running=load.running,
        waiting=load.waiting,
        slots=load.slots,
        kv_used=max(load.kv_used, receiver.usage()),
        step_us=round(load.step_s * 1e6),
    )
