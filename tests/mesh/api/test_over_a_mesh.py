"""The public APIs over a whole mesh of simulated engines, as `pdd up` starts it."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest
from openai import AsyncOpenAI

from pdd.rpc.channel import open_channel
from pdd.v1 import inference_pb2, inference_pb2_grpc
from tests.mesh.api.test_clients import run_example
from tests.processes.program import ANY_PORTS, started

pytestmark = pytest.mark.processes

PROMPT = "Tell me of the sea. " * 8
TOKENS = 120


async def test_every_way_of_asking_gives_the_same_answer_and_leaves_nothing_running(http: aiohttp.ClientSession) -> None:
    async with started("up", "--engine", "sim", "--pipeline", "relay", *ANY_PORTS) as up:
        await up.until("ready. ")
        found = re.search(r"^OpenAI API: +(\S+)/v1$", up.output, re.MULTILINE)
        assert found, up.output
        url = found[1]
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            whole, streamed, over_grpc = await asyncio.gather(_whole(client), _streamed(client), _over_grpc(up.grpc_address))
            assert len(whole) > TOKENS
            assert whole == streamed == over_grpc
            stop = whole[len(whole) // 2 :][:12]  # main's, well behind the handoff
            assert await _streamed(client, stop) == whole.partition(stop)[0]
            await _leave_early(client)
        examples = [await run_example(name, url, up.grpc_address) for name in ("openai_client.py", "client.py")]
        assert all(len(printed.split()) > 10 for printed in examples)
        async with http.get(f"{url}/metrics") as reply:
            metrics = await reply.text()
        assert 'pdd_requests_total{outcome="cancelled",route="/v1/completions",status="499"} 1.0' in metrics
        assert 'pdd_requests_running{route="/v1/completions"} 0.0' in metrics
        assert "pdd_aborts_unanswered_total{" not in metrics


async def _whole(client: AsyncOpenAI) -> str:
    answer = await client.completions.create(model="pdd-sim", prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    return answer.choices[0].text


async def _streamed(client: AsyncOpenAI, stop: str | None = None) -> str:
    stream = await client.completions.create(
        model="pdd-sim", prompt=PROMPT, max_tokens=TOKENS, temperature=0, stop=stop, stream=True
    )
    return "".join([chunk.choices[0].text async for chunk in stream])


async def _over_grpc(address: str) -> str:
    request = inference_pb2.GenerateRequest(prompt=PROMPT)
    request.options.max_tokens, request.options.temperature = TOKENS, 0.0
    async with open_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        replies = [reply async for reply in stub.Generate(request, timeout=60)]
    assert {reply.delta.source for reply in replies[:-1]} == {"prefill-0", "relay-0", "main-0"}
    return "".join(reply.delta.text for reply in replies)


async def _leave_early(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="pdd-sim", prompt=PROMPT, max_tokens=4000, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
