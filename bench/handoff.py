"""What it costs to hand 100 eager tokens from the relay to main, as ids in each mode, and as KV.

    python -m bench.handoff                         40 ms RTT with 10 ms of jitter, 30 seeds a row, about two minutes
    python -m bench.handoff --loss 1e-4             the same with lost packets
    python -m bench.handoff --real                  the real model over real processes: Catch-Up against One-Shot

Rows of ids run the mesh in virtual time: dense-8b on a device that takes 25 ms a step, a prompt whose KV takes as long to cross as
the relay needs for 100 tokens, and four other requests that decode on the same main. A seed decides the link's jitter and where in
a step things fall. `first` is a pair's first handoff, decided on what is believed of any pair; `later` is decided on what the
first has taught. The rows of KV are reckoned at the engine's level: see `handoff_kv`.

    bytes       serialised, of all messages: Extends, what the relay is told and answers, and all that main says of the request up
                to its first token, that included; measured without the other requests, whose tokens would share the frames
    latency     from the news that main has the prompt's KV to main's first token, at the gateway
    raw gap     from the relay's last token to main's first, at the gateway
    user gap    the longest that the reader of the stream has waited around the switch
    bystanders  the longest that a reader of the others has waited in the time of the handoff and a step; and in as long a time
                just before it
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

from bench.handoff_kv import ship_kv
from bench.handoff_real import compare_real
from bench.handoff_sample import Sample, Setting
from bench.report import RESULTS, print_table, write_json
from gateway.generation import End, GenerationSpec, Generator, Timeline, Tokens
from gateway.mesh.settings import HandoffChoice, MeshSettings
from pdd.catalog.base import Role
from pdd.engine.sim.model import SimConfig
from pdd.sampling import SamplingParams
from pdd.telemetry import configure_logging
from pdd.v1 import decode_pb2
from virtual.clock import run
from virtual.mesh import MeshSpec, VirtualMesh, running_mesh, trio
from wan.link import LinkSettings

ANSWERED_BY_MAIN = 40  # tokens after the switch
SETTLE_S = 1.0  # until the others decode on main
POLL_S = 0.0005
FACTS_TOKEN_BYTES = 46_490  # of KV: 4649 KB for 100 tokens
SITE_A, SITE_B = "a", "b"


@dataclass(frozen=True, slots=True)
class Way:
    """A row of ids."""

    name: str
    handoff: HandoffChoice
    later: bool = False


WAYS = (
    Way("one_shot", HandoffChoice.ONE_SHOT),
    Way("catch_up", HandoffChoice.CATCH_UP),
    Way("auto, first", HandoffChoice.AUTO),
    Way("auto, later", HandoffChoice.AUTO, later=True),
)


@dataclass(slots=True)
class Reading:
    """One answer as its reader got it."""

    tokens: int = 0
    arrived_s: list[float] = field(default_factory=list)  # of each piece of tokens
    end: End | None = None


def mesh_spec(setting: Setting, handoff: HandoffChoice, seed: int) -> MeshSpec:
    model = SimConfig(hardware=setting.hardware, model=setting.model)
    return MeshSpec(trio(model), setting.link, MeshSettings(handoff=handoff), seed)


async def one_handoff(setting: Setting, way: Way, seed: int) -> Sample:
    """In a mesh of its own, with others on the main."""
    async with running_mesh(mesh_spec(setting, way.handoff, seed)) as mesh, asyncio.TaskGroup() as group:
        others = [Reading() for _ in range(setting.bystanders)]
        reading_others = [
            group.create_task(ask(mesh.gateway, _prompt(20, number + 1), 4000, reading)) for number, reading in enumerate(others)
        ]
        await asyncio.sleep(SETTLE_S + Random(seed).uniform(0, setting.step_s))
        for _ in range(1 + way.later):
            asked_s = asyncio.get_running_loop().time()
            told = group.create_task(_told_s(mesh))
            reading = Reading()
            await ask(mesh.gateway, _prompt(setting.prompt_tokens), setting.eager_tokens + ANSWERED_BY_MAIN, reading)
            began_s = await told
        for task in reading_others:
            task.cancel()
    assert reading.end is not None
    sample = _sample(reading.end.timeline, asked_s, began_s)
    start_s, end_s = asked_s + sample.began_s, asked_s + sample.began_s + sample.latency_s + setting.step_s
    return replace(
        sample,
        bystander_gap_s=max(_largest_gap(other, start_s, end_s) for other in others),
        bystander_before_s=max(_largest_gap(other, 2 * start_s - end_s, start_s) for other in others),
    )


async def quiet_handoff_bytes(setting: Setting, way: Way, seed: int) -> int:
    """Of a handoff in a mesh that does nothing else."""
    async with running_mesh(mesh_spec(setting, way.handoff, seed)) as mesh:
        for _ in range(1 + way.later):
            before = _crossed_bytes(mesh)
            until_main = Reading()
            async with mesh.gateway.generate(_spec(setting, streaming=False)) as generation:
                async for item in generation:
                    assert isinstance(item, Tokens)
                    until_main.tokens += len(item.tokens)
                    if item.source.startswith(Role.MAIN.value):
                        found = _crossed_bytes(mesh) - before
                        break
                async for item in generation:
                    pass
    return found + _stopped_bytes(until_main.tokens - 1)
