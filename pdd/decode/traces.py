"""What a decoder did for each request that is traced, as spans: made of the actions that a session carries out.

Fed by the session with every action before it is carried out, none of which comes with each token. A handle's spans are recorded
together when it ends. Reads no clock; times are the loop's.

    relay.request | main.request     admission → closing event                       (child of the request's root)
    ├─ relay.receive | main.receive  the offer is accepted → every block is verified
    ├─ relay.import | extend         ids are given to the engine → it has computed them; the first time with import and tail
    └─ relay.decode | main.decode    → the last token

All of them but the first link to the stage of the request that they serve: `relay` or `main`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pdd.decode.actions import Action, AdmitKv, ExtendSeq, KeepOutput, OpenSeq
from pdd.engine.base import SeqId
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.tracing.context import TraceContext
from pdd.tracing.span import Attribute, SpanRecord
from pdd.tracing.tracer import Tracer
from pdd.v1 import decode_pb2


@dataclass(slots=True)
class _Handle:
    context: TraceContext  # of the request's root
    span_id: int
    request: RequestId
    admitted_s: float
    wanted: decode_pb2.Wanted | None = None
    wanted_s: float = 0.0
    seq: SeqId | None = None
    extends: deque[tuple[float, ExtendSeq]] = field(default_factory=deque)  # given to the engine, and when
    extended: int = 0
    kept_blocks: int = 0  # of its output, for the prefix cache
    decodes_from: tuple[float, int] | None = None  # since when, and the first output index
    spans: list[SpanRecord] = field(default_factory=list)


class HandleTraces:
    """Of one session."""

    def __init__(self, tracer: Tracer, role: str) -> None:
        self._tracer = tracer
        self._role = role
        self._handles: dict[int, _Handle] = {}
        self._by_request: dict[RequestId, _Handle] = {}
        self._by_seq: dict[SeqId, _Handle] = {}

    def note(self, action: Action, now_s: float) -> None:
        match action:
            case AdmitKv(number, spec):
                self._admitted(number, spec, now_s)
            case OpenSeq(seq, spec):
                self._opened(seq, spec.request)
            case ExtendSeq(seq) if seq in self._by_seq:
                self._by_seq[seq].extends.append((now_s, action))
            case KeepOutput(request) if request in self._by_request:
                self._by_request[request].kept_blocks += len(action.payloads)
            case decode_pb2.OpeningEvent() if action.handle in self._handles:
                self._opening(self._handles[action.handle], action, now_s)
            case decode_pb2.ClosingEvent() if action.handle in self._handles:
                self._closed(self._handles.pop(action.handle), action, now_s)
            case _:
                pass

    def _admitted(self, number: int, spec: RequestSpec, now_s: float) -> None:
        context = TraceContext.from_bytes(spec.trace)
        if context is not None:
            handle = _Handle(context, self._tracer.new_span_id(), spec.request, now_s)
            self._handles[number] = handle
            self._by_request.setdefault(spec.request, handle)

    def _opened(self, seq: SeqId, request: RequestId) -> None:
        handle = self._by_request.get(request)
        if handle is not None:
            handle.seq = seq
            self._by_seq[seq] = handle

    def _opening(self, handle: _Handle, event: decode_pb2.OpeningEvent, now_s: float) -> None:
        match event.WhichOneof("event"):
            case "wanted":
                handle.wanted, handle.wanted_s = event.wanted, now_s
            case "kv_ready":
                self._received(handle, event.kv_ready.blocks, now_s)
            case "extended":
                self._extended(handle, event.extended, now_s)

    def _received(self, handle: _Handle, blocks: int, now_s: float) -> None:
        wanted = handle.wanted or decode_pb2.Wanted()
        told: dict[str, Attribute] = {
            "pdd.blocks": blocks,
            "pdd.missing_blocks": wanted.missing_blocks,
            "pdd.missing_bytes": wanted.missing_bytes,
        }
        self._add(handle, f"{self._role}.receive", handle.wanted_s or now_s, now_s, told)

    def _extended(self, handle: _Handle, event: decode_pb2.Extended, now_s: float) -> None:
        if not handle.extends:
            return
        given_s, extend = handle.extends.popleft()
        told: dict[str, Attribute] = {
            "pdd.first_index": extend.first_index,
            "pdd.tokens": len(extend.ids),
            "pdd.computed_tokens": event.computed_tokens,
            "pdd.compute_ms": event.compute_us / 1000,
            "pdd.imports": handle.extended == 0,
            "pdd.then_decode": extend.then_decode,
        }
        handle.extended += 1
        self._add(handle, "extend" if self._role == "main" else f"{self._role}.import", given_s, now_s, told)
        if extend.then_decode:
            handle.decodes_from = now_s, event.next_index

    def _closed(self, handle: _Handle, event: decode_pb2.ClosingEvent, now_s: float) -> None:
        outcome = event.WhichOneof("event") or "aborted"
        end = event.finished if outcome == "finished" else event.stopped
        error = event.error.message if outcome == "error" else None
        if handle.decodes_from is not None:
            since_s, first_index = handle.decodes_from
            made: dict[str, Attribute] = {"pdd.outcome": outcome}
            if outcome in ("finished", "stopped"):
                made["pdd.tokens"] = end.next_index - first_index
            self._add(handle, f"{self._role}.decode", since_s, now_s, made, error)
        told: dict[str, Attribute] = {
            "pdd.request": str(handle.request),
            "pdd.outcome": outcome,
            "pdd.kept_blocks": handle.kept_blocks,
        }
        context, name = handle.context, f"{self._role}.request"
        root = SpanRecord(name, context.trace_id, handle.span_id, context.span_id, handle.admitted_s, now_s, told, error=error)
        if self._by_request.get(handle.request) is handle:
            del self._by_request[handle.request]
        if handle.seq is not None:
            del self._by_seq[handle.seq]
        self._tracer.record((root, *handle.spans))

    def _add(
        self, handle: _Handle, name: str, start_s: float, end_s: float, told: dict[str, Attribute], error: str | None = None
    ) -> None:
        context = handle.context
        links = (context.stage_id(self._role),)
        own_id = self._tracer.new_span_id()
        handle.spans.append(
            SpanRecord(name, context.trace_id, own_id, handle.span_id, start_s, end_s, told, links=links, error=error)
        )
