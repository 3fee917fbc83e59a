"""One seed, one run: the same events at the same times, whatever the heap looks like."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig
from tests.mesh.virtual.asking import ask, greedy, prompt_of
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh, trio
from wan.link import LinkSettings

MODEL = SimConfig(hardware=HARDWARE["cpu-tiny"])
SPEC = MeshSpec((*trio(MODEL), *trio(MODEL)), LinkSettings(rate_mbit=50.0, rtt_ms=40.0, jitter_ms=5.0), seed=7)


async def busy_mesh() -> None:
    async with running_mesh(SPEC) as mesh, asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(ask(mesh.gateway, prompt_of(40 * number + 1, number), greedy(50)))


def trace_of_a_run() -> list[tuple[float, str]]:
    events: list[tuple[float, str]] = []
    run(busy_mesh, seed=3, limit_s=600.0, trace=lambda now_s, what: events.append((now_s, what)))
    return events


def test_two_runs_with_one_seed_are_alike_also_on_another_heap() -> None:
    first = trace_of_a_run()
    junk = [object() for _ in range(100_003)]
    del junk[::2]
    again = trace_of_a_run()
    assert len(first) > 1000
    assert again == first


def test_another_seed_gives_another_run() -> None:
    async def arrivals(seed: int) -> list[float]:
        async with running_mesh(replace(SPEC, seed=seed)) as mesh:
            return (await ask(mesh.gateway, prompt_of(100), greedy(100))).arrived_s

    assert run(arrivals, 1) != run(arrivals, 2)
