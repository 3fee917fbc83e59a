"""More cold requests than the relays have slots for: first come, first served, and nobody stays on a relay for want of a main."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.plan import Plan, ReasonCode
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import Answer, prompt_of
from tests.mesh.virtual.caching import asked, at_rest, cached_mesh
from virtual.clock import run
from virtual.mesh import MeshSpec, VirtualMesh, running_mesh

TOKENS = 600
RELAY_SLOTS = 2
MAIN_SLOTS = 16


class Ordered(Observed):
    """Also remembers whose plan each is, by the length of the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        super().planned(plan, prompt_tokens)
        self.lengths.append(prompt_tokens)


def prompt(number: int) -> tuple[int, ...]:
    return prompt_of(1000 + number, number)


def narrow_mesh(**settings: Any) -> MeshSpec:
    return cached_mesh(500.0, relay_slots=RELAY_SLOTS, **settings)


async def rush(mesh: VirtualMesh, numbers: Sequence[int]) -> list[asyncio.Task[Answer]]:
    """Requests that come 10 ms apart."""

    async def one(number: int) -> Answer:
        answer, _ = await asked(mesh, prompt(number), TOKENS)
        return answer

    running = []
    for number in numbers:
        running.append(asyncio.get_running_loop().create_task(one(number)))
        await asyncio.sleep(0.01)
    return running


def test_who_waits_for_a_relay_gets_the_next_free_slot_in_order() -> None:
    observed = Ordered()

    async def six() -> None:
        async with running_mesh(narrow_mesh(ttft_budget_s=60.0), observed) as mesh:
            running = await rush(mesh, range(6))
            assert len(observed.plans) == RELAY_SLOTS
            await asyncio.gather(*running)
            await at_rest(mesh)

    run(six, limit_s=600.0)
    assert observed.lengths == sorted(observed.lengths)
    assert len(observed.plans) == 6
    assert {plan.pipeline for plan in observed.plans} == {Pipeline.RELAY}


def test_after_the_ttft_budget_a_request_goes_direct_and_its_stall_is_declared() -> None:
    observed = Ordered()

    async def three() -> None:
        async with running_mesh(narrow_mesh(ttft_budget_s=1.0), observed) as mesh:
            running = await rush(mesh, range(3))
            answers = await asyncio.gather(*running)
            await at_rest(mesh)
        assert answers[2].ttft_s < 1.5
        assert max(answers[2].gaps_s) < observed.plans[2].transfer_s + 1.0

    run(three, limit_s=600.0)
    last = observed.plans[2]
    assert (last.pipeline, last.reason_code) == (Pipeline.DIRECT, ReasonCode.RELAY_FULL)
    assert "expect a stall" in last.reason


def test_where_the_mains_are_full_too_nobody_is_refused_whose_stall_is_short() -> None:
    observed = Ordered()

    async def more_than_slots() -> None:
        async with running_mesh(cached_mesh(relay_slots=RELAY_SLOTS, ttft_budget_s=1.0), observed) as mesh:
            await asyncio.gather(*await rush(mesh, range(MAIN_SLOTS + 8)))
            await at_rest(mesh)

    run(more_than_slots, limit_s=600.0)
    assert len(observed.plans) == MAIN_SLOTS + 8
    assert sum(plan.reason_code is ReasonCode.RELAY_FULL for plan in observed.plans) > MAIN_SLOTS


def test_more_than_may_wait_are_refused_at_once() -> None:
    observed = Ordered()

    async def six() -> None:
        async with running_mesh(narrow_mesh(ttft_budget_s=60.0, waiting_requests=2), observed) as mesh:
            running = await rush(mesh, range(6))
            for refused in running[4:]:
                with pytest.raises(MeshError, match="2 requests wait for one") as caught:
                    await refused
                assert caught.value.code is MeshErrorCode.OVERLOADED
            await asyncio.gather(*running[:4])
            await at_rest(mesh)

    run(six, limit_s=600.0)
    assert observed.lengths == [1000, 1001, 1002, 1003]


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    observed = Ordered()

    async def five() -> None:
        async with running_mesh(narrow_mesh(ttft_budget_s=60.0, waiting_requests=3), observed) as mesh:
            running = await rush(mesh, range(5))
            running[2].cancel()  # the first in line
            running[3].cancel()
            await asyncio.sleep(0)
            running += await rush(mesh, (5, 6))  # there is room again
            await asyncio.gather(*running[:2], *running[4:])
            await at_rest(mesh)

    run(five, limit_s=600.0)
    assert observed.lengths == [1000, 1001, 1004, 1005, 1006]
