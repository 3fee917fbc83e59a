"""Requests that come at once with one cold prefix: it is computed once, and crosses the line once."""

from __future__ import annotations

import asyncio

import pytest

from tests.mesh.virtual.asking import Answer, prompt_of
from tests.mesh.virtual.caching import BLOCK_BYTES, BLOCK_TOKENS, asked, at_rest, cached_mesh, kv_crossed_bytes
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh

REQUESTS = 8
SHARED_BLOCKS, OWN_BLOCKS = 20, 2
PROMPTS = [
    (*prompt_of(SHARED_BLOCKS * BLOCK_TOKENS), *prompt_of(OWN_BLOCKS * BLOCK_TOKENS + 9, 50 + number))
    for number in range(REQUESTS)
]


async def ask_all(spec: MeshSpec, leaves: int | None, after_s: float, tokens: int) -> tuple[list[Answer], float]:
    """The answers of all but the one that leaves, and how many blocks crossed."""
    async with running_mesh(spec) as mesh:
        loop = asyncio.get_running_loop()
        running = [loop.create_task(asked(mesh, prompt, tokens)) for prompt in PROMPTS]
        await asyncio.sleep(after_s)
        if leaves is not None:
            running.pop(leaves).cancel()
        answers = [answer for answer, _ in await asyncio.gather(*running)]
        await at_rest(mesh)
        return answers, kv_crossed_bytes(mesh) / BLOCK_BYTES


@pytest.mark.parametrize("mbit", [3000.0, 20_000.0])
def test_each_block_is_computed_and_crosses_once(mbit: float) -> None:
    answers, crossed = run(ask_all, cached_mesh(mbit), None, 0.0, 250, limit_s=600.0)
    assert int(crossed) == SHARED_BLOCKS + REQUESTS * OWN_BLOCKS
    hits = sorted(answer.end.usage.cached_tokens for answer in answers if answer.end is not None)
    assert hits == [0] + [SHARED_BLOCKS * BLOCK_TOKENS] * (REQUESTS - 1)


@pytest.mark.parametrize("leaves", [0, 1])  # whom prefill computes the prefix for, and whose transfer brings it
def test_whenever_one_of_them_leaves_the_others_are_served(leaves: int) -> None:
    crossed = []
    for step in range(8):
        answers, blocks = run(ask_all, cached_mesh(3000.0), leaves, 0.005 + 0.09 * step, 200, limit_s=600.0)
        assert len(answers) == REQUESTS - 1
        crossed.append(blocks)
    assert max(crossed) < SHARED_BLOCKS + REQUESTS * OWN_BLOCKS + 1
