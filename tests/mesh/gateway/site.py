"""The gateway's mesh before real instances over sim, main behind an emulated link: all in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.generation import End, GenerationSpec, Tokens
from gateway.mesh.mesh import Mesh
from gateway.mesh.settings import MeshSettings
from gateway.placement import Placement
from gateway.timeline import Timeline
from pdd.catalog.base import Registration, Role
from pdd.catalog.memory import MemoryRegistry
from pdd.engine.base import Engine
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance
from pdd.sampling import SamplingParams
from services.main.rules import main_rules
from services.relay.rules import relay_rules
from tests.eventually import eventually
from tests.mesh.services.instances import (
    BUDGET_BLOCKS,
    RunningDecoder,
    RunningPrefill,
    greedy,
    prompt,
    running_decoder,
    running_prefill,
)
from wan.link import LinkSettings
from wan.relay import Relay

GATEWAY = Instance("gateway-0", 77)
PACED = SimConfig(hardware=HARDWARE["cpu-tiny"], pad_to_declared=True)  # about 10 ms a step
LINE = LinkSettings(rtt_ms=20, rate_mbit=4)
TTL_S = 1000.0  # the tests' instances do not beat


class Observed:
    """A MeshObserver that remembers."""

    def __init__(self) -> None:
        self.placements: list[Placement] = []
        self.handoffs: list[Timeline] = []
        self.dropped: dict[str, int] = {}
        self.unanswered: list[str] = []
        self.connected: dict[str, bool] = {}

    def placed(self, placement: Placement) -> None:
        self.placements.append(placement)

    def handoff_done(self, timeline: Timeline) -> None:
        self.handoffs.append(timeline)

    def events_dropped(self, instance_id: str, count: int) -> None:
        self.dropped[instance_id] = self.dropped.get(instance_id, 0) + count

    def abort_unanswered(self, instance_id: str) -> None:
        self.unanswered.append(instance_id)

    def link_changed(self, instance_id: str, connected: bool) -> None:
        self.connected[instance_id] = connected


@dataclass(frozen=True, slots=True)
class Site:
    mesh: Mesh
    registry: MemoryRegistry
    prefill: RunningPrefill
    relays: Sequence[RunningDecoder]
    mains: Sequence[RunningDecoder]
    line: Relay
    observed: Observed

    async def until_free(self) -> None:
        """Until nothing is held anywhere. Raises TimeoutError."""
        await eventually(lambda: all(held.holds_nothing for held in (self.prefill, *self.relays, *self.mains)))
        assert self.observed.unanswered == []


def registration(role: Role, instance: Instance, address: str, engine: Engine) -> Registration:
    capabilities = engine.capabilities
    return Registration(instance, role, "a", address, engine.layout, capabilities.context_tokens, capabilities.slots)


def mesh_settings(**values: Any) -> MeshSettings:
    return MeshSettings(**{"instance_poll_s": 0.02, "reconnect_max_s": 0.1, "closing_timeout_s": 5.0, **values})


@asynccontextmanager
async def running_site(
    config: SimConfig = PACED, *, mains: int = 1, line: LinkSettings = LINE, **settings: Any
) -> AsyncIterator[Site]:
    """One prefill, one relay and some mains, with a mesh that is connected to all of them; `settings` are the mesh's."""
    observed = Observed()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        registry = await enter(MemoryRegistry(asyncio.get_running_loop().time))
        wan = await enter(Relay(line, "127.0.0.1", Random(1)))
        prefill = await enter(running_prefill(config))
        relay = await enter(running_decoder("relay-0", relay_rules, SimModel(config), BUDGET_BLOCKS))
        remote = [
            await enter(running_decoder(f"main-{number}", main_rules, SimModel(config), BUDGET_BLOCKS)) for number in range(mains)
        ]
        await registry.announce(registration(Role.PREFILL, Instance("prefill-0", 1), prefill.address, prefill.engine), TTL_S)
        await registry.announce(registration(Role.RELAY, relay.instance, relay.address, relay.engine), TTL_S)
        for main in remote:
            address = await wan.lease(main.instance.id, main.address)
            await registry.announce(registration(Role.MAIN, main.instance, address, main.engine), TTL_S)
        mesh = await enter(
            Mesh(mesh_settings(**settings), registry, sim_card(config.context_tokens), gateway=GATEWAY, observer=observed)
        )
        await eventually(lambda: sum(observed.connected.values()) == 2 + mains)
        yield Site(mesh, registry, prefill, [relay], remote, wan, observed)


def spec(prompt_tokens: int = 200, max_tokens: int = 80, seed: int = 0, **sampling: Any) -> GenerationSpec:
    params: SamplingParams = replace(greedy(max_tokens), **sampling)
    return GenerationSpec(tuple(prompt(prompt_tokens, seed)), params, label="test")


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    tokens: list[int]
    sources: list[str]  # one per token
    end: End

    def made_by(self, instance_id: str) -> int:
        return self.sources.count(instance_id)


async def collect(mesh: Mesh, asked: GenerationSpec) -> Collected:
    """Run a request to its end, and check that indices come in order."""
    tokens: list[int] = []
    sources: list[str] = []
    async with asyncio.timeout(60), mesh.generate(asked) as generation:
        async for item in generation:
            if isinstance(item, Tokens):
                assert item.first_index == len(tokens)
                tokens.extend(item.tokens)
                sources.extend([item.source] * len(item.tokens))
            else:
                return Collected(tokens, sources, item)
    raise AssertionError("a generation ended without its End")
