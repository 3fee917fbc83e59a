"""Meshes with prefix caches in virtual time, and what their tests ask of them.

GPU-like instances: a block is 8 MiB, so a prompt of 2,000 tokens is 260 MB, which a line of 5 Gbit/s carries in 0.4 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gateway.generation import Timeline
from gateway.mesh.settings import MeshSettings
from gateway.routing.plan import Plan
from pdd.catalog.base import RegistryUnavailable, Role
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.catalog.prefixes import CacheBatch, CacheEvents, CacheSnapshot, CacheState
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.model import SimConfig
from pdd.identity import Instance
from pdd.sampling import SamplingParams
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.alone import alone
from tests.mesh.virtual.asking import Answer, ask, greedy
from virtual.mesh import SITES, InstanceSpec, MeshSpec, VirtualMesh
from wan.link import LinkSettings, Outage

BLOCK_TOKENS = 64
BLOCK_BYTES = BLOCK_TOKENS * MODELS["dense-8b"].kv_bytes
PUBLISHED_S = 1.0  # after which the gateway knows what an instance has cached
GPU = SimConfig(
    hardware=HARDWARE["gpu-b"],
    model=MODELS["dense-8b"],
    context_tokens=16384,
    block_tokens=BLOCK_TOKENS,
    pad_to_declared=False,
)
_LIMITS = StepLimits(512, 512, 256)


def cached_mesh(
    mbit: float = 5000.0, *, prefills: int = 1, relays: int = 1, mains: int = 1, relay_slots: int = 8, **settings: Any
) -> MeshSpec:
    roles = ((Role.PREFILL, prefills, 8), (Role.RELAY, relays, relay_slots), (Role.MAIN, mains, 16))
    instances = [_instance(role, slots) for role, count, slots in roles for _ in range(count)]
    return MeshSpec(tuple(instances), line(mbit), MeshSettings(wan_mbit=mbit, **settings))


def line(mbit: float, outage: Outage = Outage.NONE) -> LinkSettings:
    return LinkSettings(rate_mbit=mbit, rtt_ms=40.0, outage=outage)


def kv_crossed_bytes(mesh: VirtualMesh) -> int:
    """Bytes of KV that have arrived at the mains, with the frames that they came in."""
    tally = mesh.network.crossed(SITES[Role.PREFILL], SITES[Role.MAIN]).get("PushRequest.frame")
    return 0 if tally is None else tally.link_bytes


def blocks_of(crossed_bytes: int) -> int:
    """Full blocks among bytes that crossed, their frames left out."""
    return crossed_bytes // BLOCK_BYTES


async def asked(
    mesh: VirtualMesh, prompt: tuple[int, ...], max_tokens: int | SamplingParams, *, expected_tokens: int | None = None
) -> tuple[Answer, Timeline]:
    """An answer whose text was found to be right."""
    sampling = greedy(max_tokens) if isinstance(max_tokens, int) else max_tokens
    answer = await ask(mesh.gateway, prompt, sampling, expected_tokens=expected_tokens)
    right(answer, prompt, sampling)
    assert answer.end is not None
    return answer, answer.end.timeline


def right(answer: Answer, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
    expected = _expected(prompt, sampling)
    assert answer.end is not None
    assert tuple(answer.tokens) == expected.tokens
    assert answer.end.reason is expected.reason


async def at_rest(mesh: VirtualMesh) -> None:
    """Return when nothing is held, and the catalog and the gateway know what is cached. Raises TimeoutError."""
    async with asyncio.timeout(60.0):
        while not (mesh.holds_nothing and mesh.gateway.catalog_synced and await _published(mesh)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _published(mesh: VirtualMesh) -> bool:
    for served in mesh.instances.values():
        snapshot = await mesh.catalog.snapshot(served.instance)
        if served.cache.limit_bytes and (snapshot is None or snapshot.hashes != served.cache.hashes()):
            return False
    return True


_expected = cache(alone)


class Saboteur(Observed):
    """Does something to the mesh in the moment in which a request has its plan."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] = lambda: None

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        super().planned(plan, prompt_tokens)
        self.then()


class FaultyCatalog(MemoryPrefixCatalog):
    """One that can be away, and that may not hear who leaves."""

    away = False
    hears_withdrawals = True

    async def publish(self, instance: Instance, batch: CacheBatch, ttl_s: float) -> bool:
        self._reach()
        return await super().publish(instance, batch, ttl_s)

    async def publish_all(self, instance: Instance, snapshot: CacheSnapshot, ttl_s: float) -> bool:
        self._reach()
        return await super().publish_all(instance, snapshot, ttl_s)

    async def renew(self, instance: Instance, state: CacheState, ttl_s: float) -> bool:
        self._reach()
        return await super().renew(instance, state, ttl_s)

    async def withdraw(self, instance: Instance) -> None:
        self._reach()
        if self.hears_withdrawals:
            await super().withdraw(instance)

    async def distrust(self, instance: Instance, state: CacheState) -> None:
        self._reach()
        await super().distrust(instance, state)

    async def longest(self, hashes: Sequence[int], instances: Sequence[Instance]) -> Mapping[Instance, int]:
        self._reach()
        return await super().longest(hashes, instances)

    async def snapshot(self, instance: Instance) -> CacheSnapshot | None:
        self._reach()
        return await super().snapshot(instance)

    async def position(self) -> str:
        self._reach()
        return await super().position()

    async def events(self, after: str, wait_s: float) -> CacheEvents:
        self._reach()
        return await super().events(after, wait_s)

    def _reach(self) -> None:
        if self.away:
            raise RegistryUnavailable("the catalog is away")


def faulty(mesh: VirtualMesh) -> FaultyCatalog:
    assert isinstance(mesh.catalog, FaultyCatalog)
    return mesh.catalog


def _instance(role: Role, slots: int) -> InstanceSpec:
    return InstanceSpec(role, replace(GPU, slots=slots), _LIMITS, kv_budget_bytes=64 << 30, prefix_cache_bytes=32 << 30)
