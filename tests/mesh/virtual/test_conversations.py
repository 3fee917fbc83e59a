"""Conversations: the first turn relays, later ones go direct, and only what main lacks crosses the line."""

from __future__ import annotations

import asyncio

from gateway.handoff.machine import Pipeline
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import prompt_of
from tests.mesh.virtual.caching import BLOCK_BYTES, BLOCK_TOKENS, PUBLISHED_S, asked, at_rest, cached_mesh, kv_crossed_bytes
from virtual.clock import run
from virtual.mesh import VirtualMesh, running_mesh

TURNS = 5


async def converse(mesh: VirtualMesh, seed: int, pause_s: float) -> None:
    """Five turns, each checked against what main and prefill have of the one before."""
    prompt, in_main, in_prefill = prompt_of(2000, seed), 0, 0  # full blocks
    for turn in range(TURNS):
        answer, timeline = await asked(mesh, prompt, 200)
        blocks = len(prompt) // BLOCK_TOKENS
        assert timeline.main_cached_tokens == in_main * BLOCK_TOKENS
        assert timeline.wan_kv_bytes == (blocks - in_main) * BLOCK_BYTES
        assert answer.end is not None
        assert answer.end.usage.cached_tokens == in_prefill * BLOCK_TOKENS
        in_main = (len(prompt) + len(answer.tokens) - 1) // BLOCK_TOKENS  # the last token was never computed
        in_prefill = blocks
        prompt += (*answer.tokens, *prompt_of(150, 100 * seed + turn + 1))
        await asyncio.sleep(pause_s)


def test_only_the_blocks_that_main_lacks_cross() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(), observed) as mesh:
            await converse(mesh, 0, PUBLISHED_S)
            await at_rest(mesh)
            crossed = kv_crossed_bytes(mesh)
            missing = sum(plan.missing_bytes for plan in observed.plans)
            assert missing <= crossed < missing * 1.001  # the frames around them

    run(conversation, limit_s=600.0)
    assert [plan.pipeline for plan in observed.plans] == [Pipeline.RELAY] + [Pipeline.DIRECT] * (TURNS - 1)
    assert not observed.joins


def test_conversations_stay_on_their_main() -> None:
    observed = Observed()

    async def conversations() -> None:
        async with running_mesh(cached_mesh(prefills=1, relays=2, mains=3), observed) as mesh:
            async with asyncio.TaskGroup() as group:
                for seed in range(3):
                    group.create_task(converse(mesh, seed, PUBLISHED_S))
            await at_rest(mesh)

    run(conversations, limit_s=600.0)
    turns: dict[str, int] = {}
    for plan in observed.plans:
        assert plan.main is not None
        turns[plan.main.instance.id] = turns.get(plan.main.instance.id, 0) + 1
    assert turns == {"main-0": TURNS, "main-1": TURNS, "main-2": TURNS}


def test_a_turn_that_comes_before_the_catalog_knows_still_finds_its_main() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(prefills=1, relays=2, mains=3), observed) as mesh:
            await converse(mesh, 0, 0.0)
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    mains = {plan.main.instance.id for plan in observed.plans if plan.main is not None}
    assert len(mains) == 1
