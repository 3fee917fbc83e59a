"""What the simulated mesh is asked and has to answer, whoever of its processes made which part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pdd.engine.sim.reference import continuation
from pdd.engine.sim.vocabulary import sim_card
from tests.mesh.services.instances import BLOCK_TOKENS
from tests.support.gateway import GatewayClient
from tests.support.process import DEADLINE_S

TOKENIZER = sim_card(4096).tokenizer


def expected_text(ids: Sequence[int], count: int) -> str:
    text: str = TOKENIZER.decode(continuation(ids, count, ignore_eos=True), skip_special_tokens=True)
    return text


def full_tokens(ids: Sequence[int]) -> int:
    """Those of the full blocks, which are what a cache holds."""
    return len(ids) // BLOCK_TOKENS * BLOCK_TOKENS


async def until_main_is_known_to_have(gateway: GatewayClient, ids: Sequence[int]) -> None:
    """Ask for single tokens, which add nothing to main's cache, until routing sees the whole hit. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while (await gateway.ask(ids, 1)).main_hit_tokens < full_tokens(ids):  # noqa: ASYNC110
            await asyncio.sleep(0.5)  # each one teaches routing that answers are short
