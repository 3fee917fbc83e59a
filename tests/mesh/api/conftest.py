"""The gateway's two servers on real sockets, over a scripted mesh."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import grpc.aio
import pytest
import uvloop
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from gateway.answer import Answers
from gateway.detokenizer import Vocabulary
from gateway.inference import SERVICE, Inference
from gateway.metrics import GatewayMetrics
from gateway.openai.api import Api
from gateway.openai.server import build_app, serve_http
from gateway.prompting import Prompting
from pdd.engine.sim.vocabulary import sim_card
from pdd.model.card import ModelCard
from pdd.rpc.server import serve
from pdd.tracing.tracer import Tracer
from pdd.v1 import inference_pb2_grpc
from tests.unit.gateway_api.scripted import Script, ScriptedGenerator, saying

CONTEXT = 256
CARD = sim_card(CONTEXT)
NOW_S = 1_800_000_000.0


@dataclass(frozen=True)
class Gateway:
    http: str  # http://host:port
    grpc: str  # host:port
    generator: ScriptedGenerator
    registry: CollectorRegistry

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.http}/v1", api_key="none", max_retries=0, timeout=20)

    def count(self, metric: str, **labels: str) -> float:
        """The samples of a metric that have these labels, added up."""
        samples = (sample for family in self.registry.collect() for sample in family.samples if sample.name == metric)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


Start = Callable[..., AbstractAsyncContextManager[Gateway]]


async def stands_still(number: Callable[[], float]) -> None:
    """Until a number above 0 has stopped growing: whoever makes it waits for someone else."""
    seen = 0.0
    async with asyncio.timeout(30):
        while seen != number() or not seen:
            seen = number()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _running(
    script: Script,
    missing: Sequence[str] = (),
    *,
    write_deadline_s: float = 20.0,
    body_deadline_s: float = 20.0,
    max_body_bytes: int = 100_000,
    tracer: Tracer | None = None,
) -> AsyncIterator[Gateway]:
    generator = ScriptedGenerator(script, tuple(missing))
    registry = CollectorRegistry()
    answers = Answers(generator, Vocabulary(CARD.tokenizer), GatewayMetrics(registry), tracer)
    prompting = Prompting(CARD, lambda: CONTEXT, lambda bits: 7)
    numbers = itertools.count(1)

    def new_id() -> str:
        return f"n{next(numbers)}"

    api = Api(prompting, answers, new_id, lambda: NOW_S, write_deadline_s, body_deadline_s)
    servicer = Inference(prompting, answers, new_id, write_deadline_s)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
        return [SERVICE]

    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serve_http("127.0.0.1:0", build_app(api, max_body_bytes)))
        rpc = await stack.enter_async_context(serve("127.0.0.1:0", register))
        yield Gateway(f"http://{address}", rpc.address, generator, registry)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def start() -> Start:
    """`async with start(script)` gives a running Gateway."""
    return _running


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """One that says " the river ran to the sea."."""
    async with _running(saying(CARD, " the river ran to the sea.")) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose prompt is rendered or encoded fails as an internal error."""

    def read(*_args: object) -> None:
        raise AssertionError("the prompt was rendered or encoded")

    monkeypatch.setattr(ModelCard, "render_chat", read)
    monkeypatch.setattr(ModelCard, "encode", read)
