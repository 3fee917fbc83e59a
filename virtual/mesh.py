"""A whole mesh in one process on a virtual clock: the same servicers, gateway and stubs, over channels in memory.

Called by tests and benchmarks inside `clock.run`, or in a test whose loop is virtual. Owns every instance and the network between
them; leaving the context stops all of it. Requests go in through `gateway`, as the public APIs put them.

    site a:  prefill-*  relay-*  gateway  registry          site b:  main-*
                           └──────────── link ───────────────┘
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from gateway.mesh.mesh import Mesh
from gateway.mesh.observer import MeshObserver
from gateway.mesh.settings import MeshSettings
from gateway.routing.settings import RoutePolicy
from pdd.catalog.base import Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.catalog.prefixes import PrefixCatalog
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
GATEWAY, GATEWAY_SITE = "gateway", "a"
_PORT = 50051

MakeCatalog = Callable[[MemoryRegistry], PrefixCatalog]


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


class VirtualMesh:
    """Made by `running_mesh`. What runs can be stopped and started again by its name."""

    gateway: Mesh  # while it runs

    def __init__(
        self, spec: MeshSpec, observer: MeshObserver | None, make_catalog: MakeCatalog, tasks: asyncio.TaskGroup
    ) -> None:
        self.network = Network(seed=spec.seed)
        self.registry = MemoryRegistry(asyncio.get_running_loop().time)
        self.catalog = make_catalog(self.registry)
        self.instances: dict[str, Served] = {}  # by instance id; those that are stopped are not among them
        self._spec = spec
        self._observer = observer
        self._tasks = tasks
        self._random_bits = Random(spec.seed).getrandbits
        self._specs = _named(spec.instances)
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}  # with what has each stop
        self._hosts = {GATEWAY: self.network.host(GATEWAY, GATEWAY_SITE)}
        self._hosts |= {name: self.network.host(name, SITES[one.role]) for name, one in self._specs.items()}
        self.set_link(spec.link)

    def set_link(self, link: LinkSettings) -> None:
        """Change the line between the sites under whatever crosses it."""
        self.network.configure(SITES[Role.PREFILL], SITES[Role.MAIN], link)

    @property
    def holds_nothing(self) -> bool:
        """Every engine is idle, and every store empty but for what is cached."""
        return all(_is_empty(served) for served in self.instances.values())

    async def start(self, name: str) -> None:
        """Start what does not run, an instance or the gateway, as a new incarnation that knows nothing of the one before."""
        serving, leaving = asyncio.Event(), asyncio.Event()
        serve = self._serve_gateway(serving, leaving) if name == GATEWAY else self._serve(name, serving, leaving)
        self._running[name] = leaving, self._tasks.create_task(serve, name=f"virtual {name}")
        await serving.wait()

    async def stop(self, name: str, *, crash: bool = False) -> None:
        """Stop an instance or the gateway: in good order, or with its connections reset first."""
        if crash:
            self._hosts[name].crash()
        leaving, task = self._running.pop(name)
        leaving.set()
        await task

    async def stop_all(self) -> None:
        for name in reversed(tuple(self._running)):
            await self.stop(name)

    async def connected(self) -> None:
        """Return when the gateway has a stream to every instance that runs."""
        while self.gateway.connected() < len(self.instances):  # noqa: ASYNC110  # a poll costs nothing in virtual time
            await asyncio.sleep(self._spec.settings.instance_poll_s)

    async def _serve(self, name: str, serving: asyncio.Event, leaving: asyncio.Event) -> None:
        instance = Instance(name, new_incarnation(self._random_bits))
        async with _serving(self._specs[name], instance, self._hosts[name], self.registry, self.catalog) as served:
            self.instances[name] = served
            serving.set()
            await leaving.wait()
            del self.instances[name]

    async def _serve_gateway(self, serving: asyncio.Event, leaving: asyncio.Event) -> None:
        spec = self._spec
        self.gateway = Mesh(
            spec.settings,
            self.registry,
            self.catalog,
            sim_card(max(one.model.context_tokens for one in spec.instances)),
            gateway=Instance(GATEWAY, new_incarnation(self._random_bits)),
            observer=self._observer,
            dial=self._hosts[GATEWAY].open_token_channel,
            policy=spec.policy,
        )
        async with self.gateway:
            await self.connected()
            serving.set()
            await leaving.wait()


@asynccontextmanager
async def running_mesh(
    spec: MeshSpec, observer: MeshObserver | None = None, *, make_catalog: MakeCatalog = MemoryPrefixCatalog
) -> AsyncIterator[VirtualMesh]:
    """A mesh whose gateway has a stream to every instance."""
    async with asyncio.TaskGroup() as tasks:
        mesh = VirtualMesh(spec, observer, make_catalog, tasks)
        try:
            for name in (*_named(spec.instances), GATEWAY):
                await mesh.start(name)
            yield mesh
        finally:
            await mesh.stop_all()


@asynccontextmanager
async def _serving(
    spec: InstanceSpec, instance: Instance, host: Host, registry: MemoryRegistry, catalog: PrefixCatalog
) -> AsyncIterator[Served]:
    server = host.new_server()
    async with (
        BatchEngine(SimModel(spec.model), spec.limits, InlineCompute()) as engine,
        _instance(spec, instance, engine, host) as served,
    ):
        served.register(server)
        port = server.add_insecure_port(f"{host.name}:{_PORT}")
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


def _named(specs: Iterable[InstanceSpec]) -> dict[str, InstanceSpec]:
    numbers: Counter[Role] = Counter()
    named = {}
    for one in specs:
        named[f"{one.role.value}-{numbers[one.role]}"] = one
        numbers[one.role] += 1
    return named


def _is_empty(served: Served) -> bool:
    load = served.engine.load()
    return (load.running, load.waiting, load.kv_used, served.store.leased_bytes, served.store.leases) == (0, 0, 0, 0, 0)
