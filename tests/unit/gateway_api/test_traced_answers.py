"""Which requests the mesh is told to trace, and that those are recorded when they have ended."""

from __future__ import annotations

import asyncio
from random import Random

from prometheus_client import CollectorRegistry

from gateway.answer import Answers
from gateway.detokenizer import Vocabulary
from gateway.metrics import GatewayMetrics
from gateway.prompting import Options, Prompting
from pdd.engine.sim.vocabulary import sim_card
from pdd.tracing.context import TraceContext
from pdd.tracing.span import SpanRecord
from pdd.tracing.tracer import Tracer
from tests.unit.gateway_api.scripted import ScriptedGenerator, saying

CARD = sim_card(512)
VOCABULARY = Vocabulary(CARD.tokenizer)


async def answered(tracer: Tracer | None, traceparent: str = "") -> ScriptedGenerator:
    """A generator that has answered one request."""
    generator = ScriptedGenerator(saying(CARD, "one two three"))
    answers = Answers(generator, VOCABULARY, GatewayMetrics(CollectorRegistry()), tracer)
    prompting = Prompting(CARD, lambda: 512, Random(1).getrandbits)
    ask = prompting.ask((1, 2, 3), Options(max_tokens=9), "label", streaming=True)
    async with answers.open(ask, asyncio.get_running_loop().time(), traceparent) as answer:
        assert [delta async for delta in answer]
    return generator


async def test_the_mesh_is_told_where_a_requests_spans_belong() -> None:
    recorded: list[SpanRecord] = []
    tracer = Tracer(Random(1).getrandbits, recorded.extend)
    generator = await answered(tracer, f"00-{7:032x}-{9:016x}-01")
    request, *stages = recorded
    assert generator.specs[0].trace == TraceContext(7, request.span_id).to_bytes()
    assert request.parent_id == 9
    assert (request.attributes["pdd.label"], request.attributes["pdd.request"]) == ("label", "scripted")
    assert {stage.parent_id for stage in stages} == {request.span_id}


async def test_what_is_not_traced_leaves_no_trace_in_the_mesh() -> None:
    recorded: list[SpanRecord] = []
    for tracer in (None, Tracer(Random(1).getrandbits, recorded.extend, sample=0.0)):
        assert (await answered(tracer)).specs[0].trace == b""
    assert recorded == []
