"""Handoffs of token ids, each in a virtual mesh of its own. Called by `bench.handoff`."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from random import Random

from bench.handoff_setting import Sample, Setting
from gateway.generation import End, GenerationSpec, Generator, Tokens
from gateway.mesh.settings import HandoffChoice, MeshSettings, PipelineChoice
from pdd.catalog.base import Role
from pdd.engine.sim.model import SimConfig
from pdd.sampling import SamplingParams
from pdd.v1 import decode_pb2
from virtual.mesh import GATEWAY_SITE, SITES, MeshSpec, VirtualMesh, running_mesh, trio

ANSWERED_BY_MAIN = 40  # tokens after the switch
SETTLE_S = 1.0  # until the others decode on main
OTHERS_TOKENS = 4000  # they are cancelled long before
POLL_S = 0.0005
TO_RELAY = ("DecodeCommand.throttle", "DecodeCommand.stop")


@dataclass(frozen=True, slots=True)
class Way:
    """How a handoff is decided."""

    name: str
    choice: HandoffChoice
    later: bool = False  # measure the pair's second one


WAYS = (
    Way("one_shot", HandoffChoice.ONE_SHOT),
    Way("catch_up", HandoffChoice.CATCH_UP),
    Way("auto, first", HandoffChoice.AUTO),
    Way("auto, later", HandoffChoice.AUTO, later=True),
)


@dataclass(slots=True)
class Reading:
    """An answer as its reader gets it."""

    arrived_s: list[float] = field(default_factory=list)  # of each piece
    sources: list[str] = field(default_factory=list)
    end: End | None = None

    def largest_gap_s(self, start_s: float, end_s: float) -> float:
        """Of those that ended in that time."""
        gaps = ((before, after) for before, after in itertools.pairwise(self.arrived_s) if start_s < after <= end_s)
        return max((after - before for before, after in gaps), default=0.0)


async def one_handoff(setting: Setting, way: Way, seed: int) -> Sample:
    """With others on the main."""
    async with running_mesh(_mesh_spec(setting, way.choice, seed)) as mesh, asyncio.TaskGroup() as group:
        others = [Reading() for _ in range(setting.bystanders)]
        reading = [
            group.create_task(_read(mesh.gateway, _request(20, OTHERS_TOKENS, number + 1), other))
            for number, other in enumerate(others)
        ]
        await asyncio.sleep(SETTLE_S + Random(seed).uniform(0, setting.step_s))
        for _ in range(1 + way.later):
            sample = await _measure(setting, mesh, others)
        for task in reading:
            task.cancel()
    return sample


async def handoff_bytes(setting: Setting, choice: HandoffChoice, seed: int) -> int:
    """Of a first handoff in a mesh that does nothing else: nothing is held back from its reader, and no frame is shared."""
    request = _request(setting.prompt_tokens, setting.eager_tokens + ANSWERED_BY_MAIN, 0, streaming=False)
    async with running_mesh(_mesh_spec(setting, choice, seed)) as mesh, mesh.gateway.generate(request) as generation:
        before, found = _crossed_bytes(mesh), 0
        async for item in generation:
            if not found and isinstance(item, Tokens) and item.source.startswith(Role.MAIN.value):
                found = _crossed_bytes(mesh) - before + _stopped_bytes(item.first_index)
    return found


async def eager_tokens(setting: Setting) -> int:
    """How many the relay makes with such a prompt."""
    return (await one_handoff(setting, WAYS[0], 0)).eager_tokens


async def _measure(setting: Setting, mesh: VirtualMesh, others: list[Reading]) -> Sample:
    asked_s = asyncio.get_running_loop().time()
    answer = Reading()
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_relay_told_s(mesh))
        await _read(mesh.gateway, _request(setting.prompt_tokens, setting.eager_tokens + ANSWERED_BY_MAIN, 0), answer)
    assert answer.end is not None
    timeline = answer.end.timeline
    starts_s = {span.name: asked_s + span.start_s for span in reversed(timeline.spans)}  # of the first of a name
    # One-Shot begins with telling the relay, Catch-Up with an Extend.
    began_s, ended_s = min(telling.result(), starts_s["extend"]), starts_s["main"]
    felt_s = ended_s - began_s + setting.step_s
    return Sample(
        mode=timeline.handoff,
        eager_tokens=timeline.eager_tokens,
        latency_s=ended_s - began_s,
        raw_gap_s=timeline.switch_gap_s,
        user_gap_s=timeline.user_gap_s,
        bystander_gap_s=max((one.largest_gap_s(began_s, began_s + felt_s) for one in others), default=0.0),
        bystander_before_s=max((one.largest_gap_s(began_s - felt_s, began_s) for one in others), default=0.0),
    )


async def _relay_told_s(mesh: VirtualMesh) -> float:
    """When the gateway next tells the relay to stop or to go slower. It is next door, so that telling takes no time."""
    before = _relay_told_bytes(mesh)
    while _relay_told_bytes(mesh) == before:  # noqa: ASYNC110  # a poll costs nothing in virtual time
        await asyncio.sleep(POLL_S)
    return asyncio.get_running_loop().time()


def _relay_told_bytes(mesh: VirtualMesh) -> int:
    crossed = mesh.network.crossed(GATEWAY_SITE, SITES[Role.RELAY])
    return sum(crossed[kind].serialised_bytes for kind in TO_RELAY if kind in crossed)


def _crossed_bytes(mesh: VirtualMesh) -> int:
    """Of what belongs to a handoff: the relay's commands, Extends, and main's frames."""
    there = mesh.network.crossed(GATEWAY_SITE, SITES[Role.MAIN])
    back = mesh.network.crossed(SITES[Role.MAIN], GATEWAY_SITE)
    tallies = (there.get("DecodeCommand.extend"), back.get("DecodeFrame"))
    return _relay_told_bytes(mesh) + sum(tally.serialised_bytes for tally in tallies if tally is not None)


def _stopped_bytes(next_index: int) -> int:
    """Of the relay's answer, which rides in a frame with its last token."""
    stopped = decode_pb2.ClosingEvent(handle=1, stopped=decode_pb2.Stopped(next_index=next_index))
    return decode_pb2.DecodeFrame(closing=[stopped]).ByteSize()


async def _read(generator: Generator, request: GenerationSpec, reading: Reading) -> None:
    clock = asyncio.get_running_loop().time
    async with generator.generate(request) as generation:
        async for item in generation:
            if isinstance(item, End):
                reading.end = item
            else:
                reading.arrived_s.append(clock())
                reading.sources.append(item.source)


def _request(prompt_tokens: int, max_tokens: int, seed: int, *, streaming: bool = True) -> GenerationSpec:
    prompt = tuple((7 * position + position // 5 + 31 * seed) % 1000 for position in range(prompt_tokens))
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)
    return GenerationSpec(prompt, sampling, "bench", streaming)


def _mesh_spec(setting: Setting, choice: HandoffChoice, seed: int) -> MeshSpec:
    model = SimConfig(hardware=setting.hardware, model=setting.model)
    return MeshSpec(trio(model), setting.link, MeshSettings(pipeline=PipelineChoice.RELAY, handoff=choice), seed)
