"""Instances, a gateway and a catalog that go and come back: answers stay right, and nobody counts on what is gone."""

from __future__ import annotations

import asyncio

import pytest

from gateway.handoff.machine import Pipeline
from pdd.catalog.memory import MemoryRegistry
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import prompt_of
from tests.mesh.virtual.caching import (
    BLOCK_TOKENS,
    PUBLISHED_S,
    FaultyCatalog,
    asked,
    at_rest,
    cached_mesh,
    faulty,
)
from virtual.clock import run
from virtual.mesh import GATEWAY, VirtualMesh, running_mesh

PROMPT = prompt_of(2000)
TTL_S = 60.0  # of what is published


async def first_turn(mesh: VirtualMesh) -> tuple[int, ...]:
    """Returns the prompt of the second one, when the gateway knows what is cached."""
    answer, _ = await asked(mesh, PROMPT, 200)
    await asyncio.sleep(PUBLISHED_S)
    return (*PROMPT, *answer.tokens, *prompt_of(100, 1))


async def next_turn(mesh: VirtualMesh, prompt: tuple[int, ...], seed: int) -> tuple[int, ...]:
    answer, _ = await asked(mesh, prompt, 50)
    await asyncio.sleep(PUBLISHED_S)
    return (*prompt, *answer.tokens, *prompt_of(100, seed))


def test_a_catalog_that_is_flushed_in_mid_run_is_filled_again() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(), observed, make_catalog=FaultyCatalog) as mesh:
            second = await first_turn(mesh)
            faulty(mesh).flush()
            third = await next_turn(mesh, second, 2)
            await at_rest(mesh)
            await asked(mesh, third, 50)
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    assert observed.plans[2].pipeline is Pipeline.DIRECT


def test_a_catalog_that_is_away_from_the_start_is_said_and_used_when_it_comes() -> None:
    observed = Observed()

    async def conversation() -> None:
        def away_catalog(registry: MemoryRegistry) -> FaultyCatalog:
            catalog = FaultyCatalog(registry)
            catalog.away = True
            return catalog

        async with running_mesh(cached_mesh(), observed, make_catalog=away_catalog) as mesh:
            second = await first_turn(mesh)
            assert [text for text in mesh.gateway.degraded() if text.startswith("prefix catalog: the catalog is away")]
            third = await next_turn(mesh, second, 2)
            faulty(mesh).away = False
            await at_rest(mesh)
            await asked(mesh, third, 50)
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    assert [plan.main_hit_tokens for plan in observed.plans[:2]] == [0, 0]
    assert observed.plans[2].pipeline is Pipeline.DIRECT
    assert observed.plans[2].main_hit_tokens > 2000


def test_a_catalog_that_goes_in_mid_run_leaves_the_hits_that_were_known() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(), observed, make_catalog=FaultyCatalog) as mesh:
            prompt = await first_turn(mesh)
            faulty(mesh).away = True
            prompt = await next_turn(mesh, prompt, 2)
            assert mesh.gateway.degraded()
            prompt = await next_turn(mesh, prompt, 3)
            faulty(mesh).away = False
            await at_rest(mesh)
            assert not mesh.gateway.degraded()
            await asked(mesh, prompt, 50)
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    first, second, third, fourth = (plan.main_hit_tokens for plan in observed.plans)
    assert first == 0 < second == third < fourth


@pytest.mark.parametrize("crash", [False, True])
def test_a_main_that_was_restarted_gets_no_direct_plan_on_what_it_had(crash: bool) -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(), observed, make_catalog=FaultyCatalog) as mesh:
            second = await first_turn(mesh)
            faulty(mesh).hears_withdrawals = not crash
            await mesh.stop("main-0", crash=crash)
            await mesh.start("main-0")
            await asyncio.sleep(1.0)  # the gateway looks at the registry
            await mesh.connected()
            _, timeline = await asked(mesh, second, 50)
            assert timeline.main_cached_tokens == 0
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    assert observed.plans[1].main_hit_tokens == 0
    assert observed.plans[1].pipeline is Pipeline.RELAY


def test_nobody_is_sent_to_a_main_that_restarts_under_load() -> None:
    observed = Observed()

    async def load() -> None:
        async with running_mesh(cached_mesh(mains=2), observed) as mesh:
            second = await first_turn(mesh)
            main = observed.plans[0].main
            assert main is not None
            await mesh.stop(main.instance.id)
            await asyncio.sleep(0.05)  # the stream's end arrives
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(asked(mesh, (*second, number), 20))
                    await asyncio.sleep(0.1)
                    if number == 3:
                        await mesh.start(main.instance.id)
            await at_rest(mesh)

    run(load, limit_s=600.0)
    first, *others = (plan.main for plan in observed.plans)
    assert first is not None
    assert first.instance not in {main.instance for main in others if main is not None}
    assert observed.plans[1].main_hit_tokens == 0


def test_a_main_that_has_stopped_counts_for_nobody_and_its_entries_run_out() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(mains=2), observed, make_catalog=FaultyCatalog) as mesh:
            second = await first_turn(mesh)
            registration = observed.plans[0].main
            assert registration is not None
            gone = registration.instance
            faulty(mesh).hears_withdrawals = False
            await mesh.stop(gone.id, crash=True)
            await mesh.registry.announce(registration, 3.0)  # as if it had been killed
            assert await mesh.catalog.snapshot(gone) is not None
            await asyncio.sleep(0.05)  # the streams' ends arrive
            await asked(mesh, second, 50)
            await asyncio.sleep(TTL_S)
            assert await mesh.catalog.snapshot(gone) is None
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    before, after = observed.plans
    assert before.main is not None
    assert after.main is not None
    assert after.main.instance != before.main.instance
    assert after.main_hit_tokens == 0


def test_a_gateway_that_was_restarted_finds_what_is_cached() -> None:
    observed = Observed()

    async def conversation() -> None:
        async with running_mesh(cached_mesh(mains=2), observed) as mesh:
            second = await first_turn(mesh)
            running = asyncio.get_running_loop().create_task(asked(mesh, prompt_of(3000, 7), 500))
            await asyncio.sleep(0.5)
            running.cancel()
            await mesh.stop(GATEWAY)
            await mesh.start(GATEWAY)
            await asyncio.sleep(PUBLISHED_S)
            await at_rest(mesh)
            _, timeline = await asked(mesh, second, 50)
            assert timeline.main_cached_tokens >= len(PROMPT) // BLOCK_TOKENS * BLOCK_TOKENS
            await at_rest(mesh)

    run(conversation, limit_s=600.0)
    (before, _, after) = (plan.main for plan in observed.plans)
    assert before is not None
    assert after is not None
    assert before.instance == after.instance
    assert observed.plans[2].pipeline is Pipeline.DIRECT
