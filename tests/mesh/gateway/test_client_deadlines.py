"""A client's deadline ends its request everywhere, at whatever stage it passes: `pdd.client` before real instances."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gateway.answer import Answers
from gateway.detokenizer import Vocabulary
from gateway.inference import SERVICE, Inference
from gateway.metrics import GatewayMetrics
from gateway.prompting import Prompting
from pdd.client import AsyncClient, DeadlineExceeded, Request, TokenIds
from pdd.engine.sim.vocabulary import sim_card
from pdd.rpc.server import serve
from pdd.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from tests.mesh.gateway.site import PACED, Site, running_site
from tests.mesh.services.instances import prompt

LONG = Request(TokenIds(prompt(120)), max_tokens=800, temperature=0.0, ignore_eos=True)


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[str]:
    """The gRPC API before the site's mesh; its address."""
    card = sim_card(PACED.context_tokens)
    answers = Answers(site.mesh, Vocabulary(card.tokenizer), GatewayMetrics(CollectorRegistry()))
    inference = Inference(Prompting(card, lambda: PACED.context_tokens, lambda _bits: 7), answers, lambda: "n")

    def register(server: object) -> list[str]:
        add_InferenceServicer_to_server(inference, server)  # type: ignore[arg-type]
        return [SERVICE]

    async with serve("127.0.0.1:0", register) as server:
        yield server.address


# While prefill computes, while the relay decodes and main's KV is on the line, and after main has taken over.
@pytest.mark.parametrize("timeout_s", [0.05, 0.6, 1.6])
async def test_a_deadline_of_the_client_frees_every_instance(timeout_s: float) -> None:
    async with running_site() as site, serving(site) as address, AsyncClient(address) as client:
        with pytest.raises(DeadlineExceeded):
            await read(client, timeout_s)
        await site.until_free()
        with pytest.raises(DeadlineExceeded):
            await client.generate_once(LONG, timeout_s=timeout_s)
        await site.until_free()
        assert await client.list_models()


async def read(client: AsyncClient, timeout_s: float) -> None:
    async with client.generate(LONG, timeout_s=timeout_s) as answer:
        async for _ in answer:
            pass


async def test_leaving_an_answer_early_frees_every_instance() -> None:
    async with running_site() as site, serving(site) as address, AsyncClient(address) as client:
        async with client.generate(LONG) as answer:
            async for delta in answer:
                if delta.source == "main-0":
                    break
        await site.until_free()
