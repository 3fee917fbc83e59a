"""A direct answer whose KV does not come in time: a relay joins, and main takes over when it has the KV after all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from gateway.handoff.machine import Pipeline
from gateway.routing.plan import ReasonCode
from pdd.catalog.base import Role
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import Answer, prompt_of
from tests.mesh.virtual.caching import (
    PUBLISHED_S,
    FaultyCatalog,
    Saboteur,
    asked,
    at_rest,
    cached_mesh,
    faulty,
    line,
)
from virtual.clock import run
from virtual.mesh import MeshSpec, VirtualMesh, running_mesh
from wan.link import Outage

FAST_MBIT, SLOW_MBIT = 20_000.0, 2500.0
BUDGET_S = 0.2
PROMPT = prompt_of(2000)
TOKENS = 300


async def answered_with(spec: MeshSpec, observed: Saboteur, sabotage: Callable[[VirtualMesh], None]) -> Answer:
    async with running_mesh(spec, observed) as mesh:
        observed.then = lambda: sabotage(mesh)
        answer, timeline = await asked(mesh, PROMPT, TOKENS)
        mesh.set_link(line(FAST_MBIT))
        await at_rest(mesh)
    assert timeline.pipeline == "direct"
    return answer


def throttle(mesh: VirtualMesh) -> None:
    mesh.set_link(line(SLOW_MBIT))


def black_hole(mesh: VirtualMesh, for_s: float = 1.0) -> None:
    mesh.set_link(line(FAST_MBIT, Outage.BLACK_HOLE))
    asyncio.get_running_loop().call_later(for_s, mesh.set_link, line(FAST_MBIT))


@pytest.mark.parametrize("sabotage", [throttle, black_hole])
def test_a_relay_joins_after_the_stall_budget_and_main_takes_over_later(sabotage: Callable[[VirtualMesh], None]) -> None:
    observed = Saboteur()
    answer = run(answered_with, cached_mesh(FAST_MBIT), observed, sabotage, limit_s=600.0)
    assert observed.joins == [Role.RELAY]
    assert answer.made_by("relay") > 10
    assert answer.made_by("main") > 10


def test_without_a_relay_a_direct_answer_waits_for_its_kv() -> None:
    observed = Saboteur()
    answer = run(answered_with, cached_mesh(FAST_MBIT, relays=0), observed, throttle, limit_s=600.0)
    assert not observed.joins
    assert answer.made_by("main") == TOKENS - 1


def test_kv_that_comes_while_the_relay_joins() -> None:
    """Around the stall budget: in time, in time to be kept from the recall, and too late."""

    async def late_by(outage_s: float) -> tuple[bool, bool]:
        observed = Saboteur()
        async with running_mesh(cached_mesh(FAST_MBIT), observed) as mesh:
            observed.then = lambda: black_hole(mesh, outage_s)
            answer, _ = await asked(mesh, PROMPT[:1000], 60)
            await at_rest(mesh)
        return bool(observed.joins), answer.made_by("relay") > 0

    ends = [run(late_by, 0.004 * step, limit_s=600.0) for step in range(1, 19)]
    assert ends == sorted(ends)
    assert set(ends) == {(False, False), (True, False), (True, True)}


def test_a_main_that_has_evicted_the_prefix_gets_a_relay_at_once() -> None:
    observed = Observed()

    async def second_turn() -> Answer:
        async with running_mesh(cached_mesh(2000.0), observed, make_catalog=FaultyCatalog) as mesh:
            first, _ = await asked(mesh, PROMPT, TOKENS)
            await asyncio.sleep(PUBLISHED_S)
            faulty(mesh).away = True
            mesh.instances["main-0"].cache.clear()
            answer, _ = await asked(mesh, (*PROMPT, *first.tokens, *prompt_of(100, 5)), TOKENS)
            faulty(mesh).away = False
            await at_rest(mesh)
        return answer

    answer = run(second_turn, limit_s=600.0)
    assert observed.plans[1].pipeline is Pipeline.DIRECT
    assert observed.plans[1].reason_code is ReasonCode.HIGH_HIT
    assert observed.joins == [Role.RELAY]
    assert answer.gaps_s[0] < BUDGET_S
    assert answer.made_by("main") > 10


def test_a_main_that_refuses_the_kv_is_replaced_by_a_relay() -> None:
    """No memory there: what it was given to decode from is nothing that a relay needs."""
    observed = Observed()
    spec = cached_mesh(FAST_MBIT)
    small = [replace(one, kv_budget_bytes=1 << 27, prefix_cache_bytes=0) for one in spec.instances if one.role is Role.MAIN]
    others = [one for one in spec.instances if one.role is not Role.MAIN]

    async def one_answer() -> Answer:
        async with running_mesh(replace(spec, instances=(*others, *small)), observed) as mesh:
            answer, timeline = await asked(mesh, PROMPT, TOKENS)
            assert timeline.pipeline == "direct"
            await at_rest(mesh)
        return answer

    answer = run(one_answer, limit_s=600.0)
    assert observed.joins == [Role.RELAY]
    assert answer.made_by("relay") == TOKENS - 1


def test_a_dead_line_does_not_hold_the_user_up_for_its_whole_time() -> None:
    """Main can't be recalled over it: the relay goes on all the same, and main is handed the answer when it is back."""
    observed = Saboteur()
    answer = run(answered_with, cached_mesh(FAST_MBIT), observed, partial(black_hole, for_s=3.0), limit_s=600.0)
    assert observed.joins == [Role.RELAY]
    assert max(answer.gaps_s) < 1.0
    assert answer.made_by("relay") > 10
