"""A decoder's spans of a request, made from the actions of its session."""

from __future__ import annotations

import itertools

from pdd.decode import events
from pdd.decode.actions import Action, AdmitKv, ExtendSeq, KeepOutput, OpenSeq
from pdd.decode.traces import HandleTraces
from pdd.engine.base import Extended, Finished, FinishReason, Stopped
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.sampling import SamplingParams
from pdd.tracing.context import TraceContext
from pdd.tracing.span import SpanRecord
from pdd.tracing.tracer import Tracer
from pdd.v1 import decode_pb2

CONTEXT = TraceContext(7, 8)
REQUEST = RequestId(5, 1)
SPEC = RequestSpec(REQUEST, (1, 2, 3), SamplingParams(max_tokens=9, seed=1), "", 1.0, CONTEXT.to_bytes())
UNTRACED = RequestSpec(RequestId(5, 2), (1, 2, 3), SamplingParams(max_tokens=9, seed=1), "", 1.0)
HANDLE, SEQ = 3, 11


def recorded(role: str, *noted: tuple[float, Action]) -> list[SpanRecord]:
    spans: list[SpanRecord] = []
    ids = itertools.count(100)
    traces = HandleTraces(Tracer(lambda _bits: next(ids), spans.extend), role)
    for now_s, action in noted:
        traces.note(action, now_s)
    return spans


def told(spans: list[SpanRecord]) -> list[tuple[str, float, float]]:
    return [(span.name, span.start_s, span.end_s) for span in spans]


def test_a_catch_up_on_main() -> None:
    request, *work = spans = recorded(
        "main",
        (1.0, AdmitKv(HANDLE, SPEC)),
        (1.1, events.wanted(HANDLE, 4, 400)),
        (2.0, events.kv_ready(HANDLE, 6)),
        (2.0, OpenSeq(SEQ, SPEC, ())),
        (2.5, ExtendSeq(SEQ, 0, (1, 2, 3), then_decode=False)),
        (2.7, events.extended(HANDLE, Extended(SEQ, 3, 8, 0.1))),
        (3.0, ExtendSeq(SEQ, 3, (4, 5), then_decode=True)),
        (3.1, events.extended(HANDLE, Extended(SEQ, 5, 2, 0.05))),
        (4.0, KeepOutput(REQUEST, "", (1, 2, 3), 0, (b"a", b"b"))),
        (4.0, events.engine_closed(HANDLE, Finished(SEQ, FinishReason.LENGTH, 9))),
    )
    assert told(spans) == [
        ("main.request", 1.0, 4.0),
        ("main.receive", 1.1, 2.0),
        ("extend", 2.5, 2.7),
        ("extend", 3.0, 3.1),
        ("main.decode", 3.1, 4.0),
    ]
    assert (request.trace_id, request.parent_id, request.links) == (7, 8, ())
    assert {span.parent_id for span in work} == {request.span_id}
    assert {span.links for span in work} == {(CONTEXT.stage_id("main"),)}
    assert len({span.span_id for span in spans}) == len(spans)
    received, first, second, decode = work
    assert (received.attributes["pdd.missing_blocks"], received.attributes["pdd.blocks"]) == (4, 6)
    assert [extend.attributes["pdd.imports"] for extend in (first, second)] == [True, False]
    assert [extend.attributes["pdd.tokens"] for extend in (first, second)] == [3, 2]
    assert decode.attributes == {"pdd.outcome": "finished", "pdd.tokens": 4}
    assert request.attributes["pdd.kept_blocks"] == 2


def test_a_relay_imports_decodes_and_stops() -> None:
    spans = recorded(
        "relay",
        (1.0, AdmitKv(HANDLE, SPEC)),
        (1.1, events.wanted(HANDLE, 6, 600)),
        (2.0, events.kv_ready(HANDLE, 6)),
        (2.0, OpenSeq(SEQ, SPEC, ())),
        (2.0, ExtendSeq(SEQ, 0, (1,), then_decode=True)),
        (2.2, events.extended(HANDLE, Extended(SEQ, 1, 4, 0.1))),
        (3.0, events.engine_closed(HANDLE, Stopped(SEQ, 8))),
    )
    assert [span.name for span in spans] == ["relay.request", "relay.receive", "relay.import", "relay.decode"]
    assert {span.links for span in spans[1:]} == {(CONTEXT.stage_id("relay"),)}
    assert spans[-1].attributes == {"pdd.outcome": "stopped", "pdd.tokens": 7}


def test_a_request_that_fails_says_why() -> None:
    (request,) = recorded("main", (1.0, AdmitKv(HANDLE, SPEC)), (2.0, events.kv_failed(HANDLE, None, "the sender is gone")))
    assert (request.end_s, request.attributes["pdd.outcome"], request.error) == (
        2.0,
        "error",
        "SENDER_LOST: the sender is gone",
    )


def test_an_abort_ends_an_extend_that_was_not_computed() -> None:
    spans = recorded(
        "main",
        (1.0, AdmitKv(HANDLE, SPEC)),
        (2.0, events.kv_ready(HANDLE, 0)),
        (2.0, OpenSeq(SEQ, SPEC, ())),
        (2.0, ExtendSeq(SEQ, 0, (1,), then_decode=True)),
        (3.0, events.aborted(HANDLE)),
    )
    assert told(spans) == [("main.request", 1.0, 3.0), ("main.receive", 2.0, 2.0)]
    assert spans[0].error is None


def test_a_request_that_is_not_traced_leaves_nothing() -> None:
    closing: decode_pb2.ClosingEvent = events.aborted(HANDLE)
    assert recorded("main", (1.0, AdmitKv(HANDLE, UNTRACED)), (2.0, events.kv_ready(HANDLE, 1)), (3.0, closing)) == []
