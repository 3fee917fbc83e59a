"""Prefill's spans of a request, made from the events that its gateway is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from pdd.engine.base import Prefilled, TokenOut
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.sampling import SamplingParams
from pdd.tracing.context import TraceContext
from pdd.tracing.span import SpanRecord
from pdd.tracing.tracer import Tracer
from pdd.transfer.base import Refusal
from pdd.transfer.outbound import TransferReport
from pdd.v1 import prefill_pb2
from services.prefill import events
from services.prefill.commands import Target
from services.prefill.traces import JobTrace

CONTEXT = TraceContext(7, 8)
SPEC = RequestSpec(RequestId(5, 1), (1,) * 60, SamplingParams(max_tokens=9, seed=1), "", 1.0, CONTEXT.to_bytes())
RELAY, MAIN = Target("relay-0", "a:1", "relay"), Target("main-0", "b:1", "main")
FIRST = events.first_token(1, TokenOut(1, 0, 42), Prefilled(1, None, 40, 0.0, 0.3), 60)

Noted = tuple[float, prefill_pb2.PrefillEvent]


def recorded(targets: Sequence[Target], *noted: Noted) -> list[SpanRecord]:
    spans: list[SpanRecord] = []
    passed: list[prefill_pb2.PrefillEvent] = []
    ids, now_s = itertools.count(100), [1.0]
    trace = JobTrace(Tracer(lambda _bits: next(ids), spans.extend), CONTEXT, SPEC, targets, passed.append, lambda: now_s[0])
    for at_s, event in noted:
        now_s[0] = at_s
        trace(event)
    assert passed == [event for _, event in noted]
    return spans


def times(spans: list[SpanRecord]) -> list[tuple[str, float, float]]:
    return [(span.name, round(span.start_s, 6), round(span.end_s, 6)) for span in spans]


def test_a_prompt_that_goes_to_two_targets() -> None:
    request, *work = spans = recorded(
        (RELAY, MAIN),
        (1.01, events.wanted(1, "relay-0", 3, 300)),
        (1.05, events.wanted(1, "main-0", 2, 200)),
        (1.5, FIRST),
        (1.6, events.transfer_done(1, "relay-0", TransferReport(3, 300, 0.6, 0.3))),
        (2.0, events.transfer_done(1, "main-0", TransferReport(2, 200, 1.0, 0.9))),
        (2.0, events.released(1)),
    )
    assert times(spans) == [
        ("prefill.request", 1.0, 2.0),
        ("prefill.queue", 1.0, 1.2),
        ("prefill.compute", 1.2, 1.5),
        ("transfer.relay", 1.0, 1.6),
        ("transfer.main", 1.0, 2.0),
    ]
    assert (request.trace_id, request.parent_id, request.links) == (7, 8, ())
    assert {span.parent_id for span in work} == {request.span_id}
    linked = [CONTEXT.stage_id(stage) for stage in ("prefill", "prefill", "relay", "main")]
    assert [span.links for span in work] == [(stage,) for stage in linked]
    assert work[1].attributes == {"pdd.computed_tokens": 40, "pdd.cached_tokens": 20, "pdd.compute_ms": 300.0}
    assert work[3].attributes == {
        "pdd.outcome": "used",
        "pdd.target": "main-0",
        "pdd.missing_blocks": 2,
        "pdd.missing_bytes": 200,
        "pdd.offer_to_want_ms": 50.0,
        "pdd.blocks": 2,
        "pdd.bytes": 200,
        "pdd.first_frame_to_commit_ms": 900.0,
    }


@pytest.mark.parametrize(("reason", "outcome"), [(None, "failed"), (Refusal.BACKLOG, "dropped"), (Refusal.NO_MEMORY, "refused")])
def test_a_transfer_that_fails_says_how(reason: Refusal | None, outcome: str) -> None:
    spans = recorded((MAIN,), (1.4, events.transfer_failed(1, "main-0", reason, "why")), (1.5, events.released(1)))
    assert times(spans) == [("prefill.request", 1.0, 1.5), ("transfer.main", 1.0, 1.4)]
    assert (spans[1].attributes["pdd.outcome"], spans[1].error) == (outcome, "why")


def test_a_transfer_of_which_nothing_is_told_was_cancelled() -> None:
    spans = recorded((MAIN,), (1.5, events.released(1)))
    assert times(spans) == [("prefill.request", 1.0, 1.5), ("transfer.main", 1.0, 1.5)]
    assert (spans[1].attributes["pdd.outcome"], spans[1].error) == ("cancelled", None)


def test_a_job_that_fails_says_why() -> None:
    failed = events.failed(1, events.ENGINE_FAILED, "the engine is gone")
    assert recorded((), (1.2, failed), (1.3, events.released(1)))[0].error == "the engine is gone"
