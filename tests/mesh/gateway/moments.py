"""A small mesh in virtual time whose switch falls at the same token in every run, and requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.mesh.observer import MeshObserver
from gateway.mesh.settings import MeshSettings, PipelineChoice
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig
from pdd.sampling import SamplingParams
from tests.eventually import eventually
from tests.mesh.virtual.asking import Answer, ask, greedy, prompt_of
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh, trio
from wan.link import LinkSettings

STEP_S = 0.010  # a decode step of the model below
RTT_S = 0.040
PROMPT, OUTPUT = 100, 80  # tokens; the relay makes about half of them
CPU = SimConfig(hardware=HARDWARE["cpu-tiny"])
# Throttled so far that the KV of 100 tokens takes about half a second.
LINE = LinkSettings(rate_mbit=35.0, rtt_ms=1000 * RTT_S)


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    streaming: bool = True


def asked(
    prompt_tokens: int = PROMPT, max_tokens: int = OUTPUT, *, text: int = 0, streaming: bool = True, **sampling: Any
) -> Asked:
    """A greedy request that goes on to its last token, but for what `sampling` changes; `text` chooses one of many prompts."""
    return Asked(prompt_of(prompt_tokens, text), replace(greedy(max_tokens), **sampling), streaming)


def mesh_spec(config: SimConfig = CPU, line: LinkSettings = LINE, **settings: Any) -> MeshSpec:
    """One of each role. With this inter-token target Catch-Up has something to do."""
    return MeshSpec(
        trio(config),
        line,
        MeshSettings(**{"pipeline": PipelineChoice.RELAY, "itl_target_ms": 15.0, "agreement_sample": 1.0, **settings}),
    )


def answers(spec: MeshSpec, requests: Sequence[Asked], observer: MeshObserver | None = None) -> list[Answer]:
    """One after the other; afterwards nothing may be held anywhere."""
    return run(_answers, spec, requests, observer, limit_s=600.0)


def answer(spec: MeshSpec, request: Asked) -> Answer:
    return answers(spec, [request])[0]


async def _answers(spec: MeshSpec, requests: Sequence[Asked], observer: MeshObserver | None) -> list[Answer]:
    async with running_mesh(spec, observer) as mesh:
        found = [await ask(mesh.gateway, one.prompt, one.sampling, streaming=one.streaming) for one in requests]
        await eventually(lambda: mesh.holds_nothing)
        return found
