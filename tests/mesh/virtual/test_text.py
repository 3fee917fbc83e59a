"""The text of a mesh is that of one engine, for any prompt, parameters and timing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random

import pytest

from gateway.mesh.settings import HandoffChoice, MeshSettings, PipelineChoice
from pdd.catalog.base import Role
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig
from pdd.engine.sim.vocabulary import sim_vocabulary
from pdd.sampling import SamplingParams
from tests.eventually import eventually
from tests.mesh.virtual.alone import alone
from tests.mesh.virtual.asking import Answer, ask
from virtual.clock import run
from virtual.mesh import InstanceSpec, MeshSpec, running_mesh
from wan.link import LinkSettings

CASES = 500
CASES_A_MESH = 25


@dataclass(frozen=True, slots=True)
class Case:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    after_s: float


@pytest.mark.parametrize("seed", range(CASES // CASES_A_MESH))
def test_any_request_gets_the_text_of_one_engine(seed: int) -> None:
    random = Random(seed)
    spec = _mesh(random)
    cases = [_case(random) for _ in range(CASES_A_MESH)]
    for case, answer in zip(cases, run(_ask_all, spec, cases, seed=seed, limit_s=3600.0), strict=True):
        expected = alone(case.prompt, case.sampling)
        assert tuple(answer.tokens) == expected.tokens
        assert answer.end is not None
        assert answer.end.reason is expected.reason
        assert answer.end.usage.completion_tokens == len(expected.tokens)
        assert [one.logprob for one in answer.logprobs] == pytest.approx([one.logprob for one in expected.logprobs], abs=1e-4)


async def _ask_all(spec: MeshSpec, cases: list[Case]) -> list[Answer]:
    async with running_mesh(spec) as mesh:

        async def later(case: Case) -> Answer:
            await asyncio.sleep(case.after_s)
            return await ask(mesh.gateway, case.prompt, case.sampling)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(later(case)) for case in cases]
        await eventually(lambda: mesh.holds_nothing)
    return [one.result() for one in running]


def _mesh(random: Random) -> MeshSpec:
    """Another link, pace, page size, chunking and choice of handoff each time."""
    model = SimConfig(hardware=HARDWARE[random.choice(("instant", "cpu-tiny", "gpu-a"))])
    limits = StepLimits(chunk_tokens=random.choice((16, 37, 128)), step_tokens=512, extend_tokens=random.choice((1, 7, 64)))
    prefill, relay = (InstanceSpec(role, model, limits) for role in (Role.PREFILL, Role.RELAY))
    main = InstanceSpec(Role.MAIN, replace(model, page_tokens=32, device_dtype=random.choice(("f16", "f32"))), limits)
    return MeshSpec(
        instances=(prefill, *[relay] * random.randint(1, 2), main),
        link=LinkSettings(
            rate_mbit=random.choice((20.0, 100.0, 1000.0)),
            rtt_ms=random.choice((1.0, 40.0, 200.0)),
            jitter_ms=random.choice((0.0, 10.0)),
        ),
        settings=MeshSettings(
            pipeline=random.choice((PipelineChoice.RELAY, PipelineChoice.AUTO, PipelineChoice.DIRECT)),
            handoff=random.choice(tuple(HandoffChoice)),
        ),
        seed=random.getrandbits(32),
    )


def _case(random: Random) -> Case:
    size = sim_vocabulary().size
    prompt = tuple(random.randrange(size) for _ in range(random.choice((1, 15, 16, 17, 100, 128, 300))))
    sampling = SamplingParams(
        max_tokens=random.choice((1, 2, 17, 60, 150)),
        seed=random.getrandbits(64),
        temperature=random.choice((0.0, 0.8, 1.3)),
        top_k=random.choice((0, 0, 5)),
        top_p=random.choice((1.0, 0.9)),
        min_p=random.choice((0.0, 0.05)),
        presence_penalty=random.choice((0.0, 0.7)),
        frequency_penalty=random.choice((0.0, 0.4)),
        repetition_penalty=random.choice((1.0, 1.2)),
        logit_bias=((sim_vocabulary().eos_id, 4.0),) if random.random() < 0.3 else (),
        min_tokens=random.choice((0, 0, 5)),
        ignore_eos=random.random() < 0.3,
        eos_ids=(sim_vocabulary().eos_id,),
        top_logprobs=random.choice((None, None, 0, 3)),
    )
    return Case(prompt, sampling, random.random() * 2)
