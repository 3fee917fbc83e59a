"""Whatever prefill and main have cached of a prompt, and wherever its length lies about a block's end: the text of one process.

Each state of the caches is made by restarting whoever is to be cold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from pdd.model.card import ModelCard
from pdd.v1 import inference_pb2_grpc
from tests.real.mesh.asking import BLOCK_BYTES, BLOCK_TOKENS, Answer, ask
from tests.real.mesh.conftest import Continue
from tests.real.mesh.prompts import CASES
from tests.real.mesh.support import running_mesh, set_link_rate
from tests.support.gateway import GatewayClient, asking
from tests.support.restarts import Restarts, restarting

pytestmark = [
    pytest.mark.real,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

TOKENS = 24
DEPTH = 5  # full blocks of the prompt that is asked again and again
SHALLOW = 2


@dataclass(frozen=True, slots=True)
class Site:
    stub: inference_pb2_grpc.InferenceAsyncStub
    gateway: GatewayClient
    restarts: Restarts

    async def ask(self, ids: list[int]) -> Answer:
        return await ask(self.stub, ids, TOKENS)

    async def make_cold(self, *names: str) -> None:
        for name in names:
            await self.restarts.restart(self.gateway, name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(request: pytest.FixtureRequest, model_dir: Path) -> AsyncIterator[Site]:
    async with (
        running_mesh(model_dir, request.param, "one_shot", rtt_ms=0) as mesh,
        asking(mesh.http_url) as gateway,
        restarting(mesh.processes) as restarts,
        grpc.aio.insecure_channel(mesh.grpc_address) as channel,
    ):
        await set_link_rate(mesh, None)  # main has its KV almost as soon as it exists: the handoff comes early
        yield Site(inference_pb2_grpc.InferenceStub(channel), gateway, restarts)


@pytest.mark.parametrize("site", ["direct"], indirect=True)  # a handoff after one token
@pytest.mark.parametrize("length", [2 * BLOCK_TOKENS - 1, 2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS + 1])
async def test_lengths_about_the_end_of_a_block(site: Site, card: ModelCard, alone: Continue, length: int) -> None:
    ids = card.encode(f"{length} miles: {CASES[1].text}")[:length]
    expected = alone(ids, TOKENS)
    cold, warm = await site.ask(ids), await site.ask(ids)
    assert cold.tokens == warm.tokens == expected
    assert cold.sources[-1] == warm.sources[-1] == "main-0"
    assert (cold.timeline.wan_kv_bytes, warm.timeline.wan_kv_bytes) == (length // BLOCK_TOKENS * BLOCK_BYTES, 0)
    # The last token of a prompt is always computed.
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


@pytest.mark.parametrize("site", ["relay"], indirect=True)
async def test_caches_that_are_warm_to_different_depths(site: Site, card: ModelCard, alone: Continue) -> None:
    ids = card.encode(CASES[1].text)[: DEPTH * BLOCK_TOKENS + 7]
    shallow = ids[: SHALLOW * BLOCK_TOKENS + 3]
    expected, expected_shallow = alone(ids, TOKENS), alone(shallow, TOKENS)

    async def check(prefill_has: int, main_has: int) -> None:
        answer = await site.ask(ids)
        assert answer.tokens == expected
        assert answer.sources[-1] == "main-0"
        assert answer.usage.cached_tokens == prefill_has * BLOCK_TOKENS
        assert answer.timeline.wan_kv_bytes == (DEPTH - main_has) * BLOCK_BYTES

    async def warm_the_beginning() -> None:
        assert (await site.ask(shallow)).tokens == expected_shallow

    await check(prefill_has=0, main_has=0)
    await check(prefill_has=DEPTH, main_has=DEPTH)
    await site.make_cold("prefill-0")
    await check(prefill_has=0, main_has=DEPTH)
    await site.make_cold("prefill-0")
    await warm_the_beginning()
    await check(prefill_has=SHALLOW, main_has=DEPTH)
    await site.make_cold("main-0")
    await check(prefill_has=DEPTH, main_has=0)
    await site.make_cold("main-0")
    await warm_the_beginning()
    await check(prefill_has=DEPTH, main_has=SHALLOW)
