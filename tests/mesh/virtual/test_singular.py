"""Answers that end on the relay: nothing crosses that was not needed, and what has crossed is not sent again."""

from __future__ import annotations

import asyncio

from gateway.handoff.machine import Pipeline
from pdd.catalog.base import Role
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import prompt_of
from tests.mesh.virtual.caching import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    PUBLISHED_S,
    asked,
    at_rest,
    cached_mesh,
    kv_crossed_bytes,
)
from virtual.clock import run
from virtual.mesh import running_mesh

RTT_S = 0.04


def test_a_short_answer_to_a_long_cold_prompt_sends_no_kv_over_the_line() -> None:
    observed = Observed()

    async def one_answer() -> None:
        async with running_mesh(cached_mesh(1000.0), observed) as mesh:
            answer, timeline = await asked(mesh, prompt_of(12_000), 50, expected_tokens=50)
            assert timeline.pipeline == "singular"
            assert answer.made_by("relay") == 49
            await at_rest(mesh)
            await asyncio.sleep(PUBLISHED_S)
            assert kv_crossed_bytes(mesh) == 0
            assert mesh.instances["main-0"].cache.blocks == 0

    run(one_answer, limit_s=600.0)
    assert not observed.joins


def test_an_answer_that_proves_longer_starts_its_transfer_late_and_hands_over() -> None:
    observed = Observed()

    async def one_answer() -> None:
        async with running_mesh(cached_mesh(4000.0), observed) as mesh:
            answer, timeline = await asked(mesh, prompt_of(10_000), 2000, expected_tokens=50)
            assert timeline.pipeline == "singular"
            assert answer.made_by("relay") > 500  # at 5 ms each: with fewer it might have ended before main had its KV
            assert answer.made_by("main") > 500
            assert timeline.wan_kv_bytes == 10_000 // BLOCK_TOKENS * BLOCK_BYTES
            await at_rest(mesh)
            assert mesh.instances["main-0"].cache.blocks == 11_999 // BLOCK_TOKENS

    run(one_answer, limit_s=600.0)
    assert observed.plans[0].pipeline is Pipeline.SINGULAR
    assert observed.joins == [Role.MAIN]


def test_a_transfer_stops_when_the_relay_ends_first_and_the_next_turn_sends_the_rest() -> None:
    prompt = prompt_of(4000)

    async def conversation() -> None:
        async with running_mesh(cached_mesh(1000.0)) as mesh:
            first, timeline = await asked(mesh, prompt, 200)
            assert first.made_by("main") == 0
            assert timeline.wan_kv_bytes == 0
            ended_at = kv_crossed_bytes(mesh)
            await asyncio.sleep(RTT_S + BLOCK_BYTES / 125e6)  # what is on its way arrives, and the frame that was begun
            stopped_at = kv_crossed_bytes(mesh)
            assert stopped_at - ended_at < 2 * BLOCK_BYTES
            await asyncio.sleep(1.0)
            assert kv_crossed_bytes(mesh) == stopped_at
            kept = mesh.instances["main-0"].cache.blocks
            assert 0 < kept <= stopped_at // BLOCK_BYTES <= kept + 1
            await at_rest(mesh)
            following = (*prompt, *first.tokens, *prompt_of(100, 1))
            _, timeline = await asked(mesh, following, 2000)
            assert timeline.main_cached_tokens == kept * BLOCK_TOKENS
            assert timeline.wan_kv_bytes == (len(following) // BLOCK_TOKENS - kept) * BLOCK_BYTES
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
