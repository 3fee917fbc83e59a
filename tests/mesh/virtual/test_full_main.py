"""More requests than main has slots: relays go on until it has one, and nobody sees the stream freeze."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.mesh.settings import HandoffChoice, MeshSettings, PipelineChoice
from pdd.catalog.base import Role
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig
from tests.eventually import eventually
from tests.mesh.virtual.alone import alone
from tests.mesh.virtual.asking import Answer, ask, greedy, prompt_of
from virtual.clock import run
from virtual.mesh import InstanceSpec, MeshSpec, running_mesh
from wan.link import LinkSettings

MODEL = SimConfig(hardware=HARDWARE["cpu-tiny"])  # about 10 ms a step
TOKENS = 300
PROMPTS = [prompt_of(60 + number, number) for number in range(6)]


async def rush(handoff: HandoffChoice) -> list[Answer]:
    main = InstanceSpec(Role.MAIN, replace(MODEL, slots=2))
    site_a = [InstanceSpec(role, MODEL) for role in (Role.PREFILL, Role.RELAY, Role.RELAY)]
    spec = MeshSpec(
        (*site_a, main), LinkSettings(rate_mbit=1000.0, rtt_ms=40.0), MeshSettings(pipeline=PipelineChoice.RELAY, handoff=handoff)
    )
    async with running_mesh(spec) as mesh:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(ask(mesh.gateway, prompt, greedy(TOKENS))) for prompt in PROMPTS]
        await eventually(lambda: mesh.holds_nothing)
    return [one.result() for one in running]


@pytest.mark.parametrize("handoff", [HandoffChoice.ONE_SHOT, HandoffChoice.CATCH_UP])
def test_nobody_freezes_for_a_main_without_a_free_slot(handoff: HandoffChoice) -> None:
    answers = run(rush, handoff, limit_s=600.0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert tuple(answer.tokens) == alone(prompt, greedy(TOKENS)).tokens
        assert max(answer.gaps_s) < 1.0
    by_main = sorted(answer.made_by("main") for answer in answers)
    assert by_main[-2] > TOKENS / 2  # its slots were used
    assert by_main[0] < TOKENS / 2
