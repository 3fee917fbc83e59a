"""A whole mesh in one process on a virtual clock: the same servicers, gateway and stubs, over channels in memory.

Called by tests and benchmarks inside `clock.run`, or in a test whose loop is virtual. Owns every instance and the network between
them; leaving the context stops all of it. Requests go in through `gateway`, as the public APIs put them.

    site a:  prefill-*  relay-*  gateway  registry          site b:  main-*
                           └──────────── link ───────────────┘
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from gateway.mesh.mesh import Mesh
from gateway.mesh.observer import MeshObserver
from gateway.mesh.settings import MeshSettings
from gateway.routing.settings import RoutePolicy
from pdd.catalog.base import Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.engine.base import Engine
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance, new_incarnation
from services.announced import announced
from services.instances import Served, main_instance, prefill_instance, relay_instance
from virtual.network import Host, Network
from wan.link import LinkSettings

SITES: Mapping[Role, str] = {Role.PREFILL: "a", Role.RELAY: "a", Role.MAIN: "b"}
GATEWAY_SITE = "a"


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a role. Its id is the role's name and its number among its kind."""

    role: Role
    model: SimConfig = field(default_factory=SimConfig)
    limits: StepLimits = field(default_factory=StepLimits)
    kv_budget_bytes: int = 1 << 32  # in bytes that blocks declare, not in bytes they take here
    prefix_cache_bytes: int = 0  # of the budget; a relay keeps none whatever is said


def trio(model: SimConfig, limits: StepLimits | None = None) -> tuple[InstanceSpec, ...]:
    """One of each role, all alike."""
    return tuple(InstanceSpec(role, model, limits or StepLimits()) for role in Role)


@dataclass(frozen=True, slots=True)
class MeshSpec:
    instances: tuple[InstanceSpec, ...]
    link: LinkSettings = field(default_factory=lambda: LinkSettings(rtt_ms=40.0))
    settings: MeshSettings = field(default_factory=MeshSettings)
    seed: int = 0
    policy: RoutePolicy | None = None  # in place of what `settings` say of routing


@dataclass(frozen=True, slots=True)
class VirtualMesh:
    gateway: Mesh
    network: Network
    instances: Mapping[str, Served]  # by instance id

    def set_link(self, link: LinkSettings) -> None:
        """Change the line between the sites under whatever crosses it."""
        self.network.configure(SITES[Role.PREFILL], SITES[Role.MAIN], link)

    @property
    def holds_nothing(self) -> bool:
        """Every engine is idle, and every store empty but for what is cached."""
        return all(_is_empty(served) for served in self.instances.values())


@asynccontextmanager
async def running_mesh(spec: MeshSpec, observer: MeshObserver | None = None) -> AsyncIterator[VirtualMesh]:
    """A mesh whose gateway has a stream to every instance."""
    random_bits = Random(spec.seed).getrandbits
    network = Network(seed=spec.seed)
    network.configure(SITES[Role.PREFILL], SITES[Role.MAIN], spec.link)
    registry = MemoryRegistry(asyncio.get_running_loop().time)
    catalog = MemoryPrefixCatalog(registry)
    host = network.host("gateway", GATEWAY_SITE)
    gateway = Mesh(
        spec.settings,
        registry,
        catalog,
        sim_card(max(one.model.context_tokens for one in spec.instances)),
        gateway=Instance("gateway", new_incarnation(random_bits)),
        observer=observer,
        dial=host.open_token_channel,
        policy=spec.policy,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registry)
        instances: dict[str, Served] = {}
        numbers: Counter[Role] = Counter()
        for one in spec.instances:
            name = f"{one.role.value}-{numbers[one.role]}"
            numbers[one.role] += 1
            instance = Instance(name, new_incarnation(random_bits))
            machine = network.host(name, SITES[one.role])
            instances[name] = await stack.enter_async_context(_serving(one, instance, machine, registry, catalog))
        await stack.enter_async_context(gateway)
        while gateway.connected() < len(instances):  # noqa: ASYNC110  # a poll costs nothing in virtual time
            await asyncio.sleep(spec.settings.instance_poll_s)
        yield VirtualMesh(gateway, network, instances)


@asynccontextmanager
async def _serving(
    spec: InstanceSpec, instance: Instance, host: Host, registry: MemoryRegistry, catalog: MemoryPrefixCatalog
) -> AsyncIterator[Served]:
    server = host.new_server()
    async with (
        BatchEngine(SimModel(spec.model), spec.limits, InlineCompute()) as engine,
        _instance(spec, instance, engine, host) as served,
    ):
        served.register(server)
        port = server.add_insecure_port(f"{host.name}:0")
        await server.start()
        try:
            async with announced(registry, catalog, served, lambda: served.registration(host.site, f"{host.name}:{port}")):
                yield served
                served.close()
        finally:
            await server.stop(0.5)


def _instance(spec: InstanceSpec, instance: Instance, engine: Engine, host: Host) -> AbstractAsyncContextManager[Served]:
    match spec.role:
        case Role.PREFILL:
            return prefill_instance(
                instance, engine, spec.kv_budget_bytes, host.open_channel, cache_bytes=spec.prefix_cache_bytes
            )
        case Role.RELAY:
            return relay_instance(instance, engine, spec.kv_budget_bytes)
        case Role.MAIN:
            return main_instance(instance, engine, spec.kv_budget_bytes, spec.prefix_cache_bytes)


def _is_empty(served: Served) -> bool:
    load = served.engine.load()
    return (load.running, load.waiting, load.kv_used, served.store.leased_bytes, served.store.leases) == (0, 0, 0, 0, 0)
