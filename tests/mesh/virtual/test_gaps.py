"""What a user waits for, on GPU-like instances 40 ms apart: nothing that depends on the line, and no seam at the switch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import median

import pytest

from gateway.mesh.settings import HandoffChoice, MeshSettings, PipelineChoice
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.model import SimConfig
from tests.mesh.virtual.asking import Answer, ask, greedy, prompt_of
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh, trio
from wan.link import LinkSettings

RTT_S = 0.04
STEP_S = 0.025
# A decode step of 25 ms, whatever few sequences are in it: the time to read the weights.
_MODEL = MODELS["dense-8b"]
GPU = replace(HARDWARE["gpu-a"], name="gpu 25 ms", memory_bytes_s=_MODEL.weight_bytes / STEP_S, overhead_s=0.0)
LINE = LinkSettings(rate_mbit=1000.0, rtt_ms=RTT_S * 1000)
TOKENS = 300


def spec(handoff: HandoffChoice, link: LinkSettings = LINE) -> MeshSpec:
    return MeshSpec(
        trio(SimConfig(hardware=GPU, model=_MODEL)), link, MeshSettings(pipeline=PipelineChoice.RELAY, handoff=handoff)
    )


async def one_answer(mesh_spec: MeshSpec, bystanders: int = 0) -> tuple[Answer, list[Answer]]:
    async with running_mesh(mesh_spec) as mesh, asyncio.TaskGroup() as group:
        others = [group.create_task(ask(mesh.gateway, prompt_of(20, seed + 1), greedy(2 * TOKENS))) for seed in range(bystanders)]
        answer = await ask(mesh.gateway, prompt_of(2000), greedy(TOKENS))
    return answer, [other.result() for other in others]


def test_ttft_depends_on_neither_the_lines_rate_nor_its_rtt() -> None:
    links = [
        LinkSettings(rate_mbit=10_000.0, rtt_ms=1.0),
        LinkSettings(rate_mbit=10_000.0, rtt_ms=400.0),
        LinkSettings(rate_mbit=100.0, rtt_ms=1.0),
        LinkSettings(rate_mbit=100.0, rtt_ms=400.0),
    ]
    ttfts_s = [run(one_answer, spec(HandoffChoice.AUTO, link))[0].ttft_s for link in links]
    assert ttfts_s == pytest.approx([ttfts_s[0]] * len(links), abs=1e-6)


def test_catch_up_switches_within_a_round_trip_and_a_step() -> None:
    answer, _ = run(one_answer, spec(HandoffChoice.CATCH_UP))
    assert answer.end is not None
    timeline, step_s = answer.end.timeline, median(answer.gaps_s)
    assert timeline.handoff == "catch_up"
    assert timeline.eager_tokens >= 60
    assert answer.made_by("main") > TOKENS / 2
    assert step_s == pytest.approx(STEP_S, rel=0.1)
    assert RTT_S <= timeline.switch_gap_s <= RTT_S + 1.5 * step_s


@pytest.mark.parametrize("handoff", [HandoffChoice.CATCH_UP, HandoffChoice.AUTO])
def test_the_user_sees_no_gap_at_the_switch(handoff: HandoffChoice) -> None:
    answer, _ = run(one_answer, spec(handoff))
    assert answer.end is not None
    assert answer.made_by("main") > TOKENS / 2
    assert max(answer.gaps_s) <= 1.5 * median(answer.gaps_s)
    assert answer.end.timeline.user_gap_s <= 1.5 * median(answer.gaps_s)


@pytest.mark.parametrize("handoff", [HandoffChoice.CATCH_UP, HandoffChoice.ONE_SHOT])
def test_bystanders_on_main_wait_no_longer_than_one_budget_of_extends(handoff: HandoffChoice) -> None:
    answer, others = run(one_answer, spec(handoff), 4)
    assert answer.end is not None
    assert answer.end.timeline.eager_tokens >= 60
    for other in others:
        assert other.end is not None
        assert other.made_by("main") > TOKENS
        own_switch = other.sources.index("main-0")
        assert max(other.gaps_s[own_switch:]) <= 2 * STEP_S
