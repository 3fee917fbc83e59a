"""The gateway's mesh before real instances over sim, main behind an emulated link: all in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.generation import End, GenerationSpec, Tokens
from gateway.mesh.mesh import Mesh
from pdd.catalog.base import Registration, Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.engine.base import Engine
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance
from services.main.rules import main_rules
from services.relay.rules import relay_rules
from tests.eventually import eventually
from tests.mesh.gateway.asking import GATEWAY, Observed, mesh_settings
from tests.mesh.services.instances import (
    BUDGET_BLOCKS,
    RunningDecoder,
    RunningPrefill,
    running_decoder,
    running_prefill,
)
from wan.link import LinkSettings
from wan.relay import Relay

PACED = SimConfig(hardware=HARDWARE["cpu-tiny"], pad_to_declared=True)  # about 10 ms a step
LINE = LinkSettings(rtt_ms=20, rate_mbit=30)  # half a second for the prompt below
TTL_S = 1000.0  # the tests' instances do not beat


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
        decoders = (*self.relays, *self.mains)
        await eventually(lambda: self.prefill.holds_nothing and all(decoder.holds_nothing for decoder in decoders))
        assert self.observed.unanswered == []


def registration(role: Role, instance: Instance, address: str, engine: Engine) -> Registration:
    capabilities = engine.capabilities
    return Registration(instance, role, "a", address, engine.layout, capabilities.context_tokens, capabilities.slots)


@asynccontextmanager
async def running_site(
    config: SimConfig = PACED,
    *,
    mains: int = 1,
    line: LinkSettings = LINE,
    main_model: Callable[[SimConfig], SimModel] = SimModel,
    **settings: Any,
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
            await enter(running_decoder(f"main-{number}", main_rules, main_model(config), BUDGET_BLOCKS))
            for number in range(mains)
        ]
        await registry.announce(registration(Role.PREFILL, Instance("prefill-0", 1), prefill.address, prefill.engine), TTL_S)
        await registry.announce(registration(Role.RELAY, relay.instance, relay.address, relay.engine), TTL_S)
        for main in remote:
            address = await wan.lease(main.instance.id, main.address)
            await registry.announce(registration(Role.MAIN, main.instance, address, main.engine), TTL_S)
        mesh = await enter(
            Mesh(
                mesh_settings(**settings),
                registry,
                MemoryPrefixCatalog(registry),
                sim_card(config.context_tokens),
                gateway=GATEWAY,
                observer=observed,
            )
        )
        await eventually(lambda: sum(observed.connected.values()) == 2 + mains)
        yield Site(mesh, registry, prefill, [relay], remote, wan, observed)


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
