"""Instances over sim with their diagnostics, in the test's own process but over real sockets and a real registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import grpc.aio

from pdd.catalog.base import Registry, Role
from pdd.catalog.heartbeat import heartbeat
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.doctor.checks import examine
from pdd.doctor.collect import Deployment, collect
from pdd.doctor.facts import Claims, Facts
from pdd.doctor.findings import Check, Finding
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance
from pdd.rpc.server import serve
from services.announced import announced
from services.diagnostics import add_diagnostics
from services.instances import Served, main_instance, prefill_instance, relay_instance
from tests.mesh.services.instances import FAST, running_engine

BUDGET_BYTES = 64 << 20
CACHE_BYTES = 32 << 20
INCARNATION = 7
CARD = sim_card(4096)
CLAIMS = Claims(50.0, CARD.model_digest, CARD.tokenizer_digest, (Role.PREFILL, Role.MAIN))


def wall_clock_s() -> float:
    return datetime.now(UTC).timestamp()


@asynccontextmanager
async def served_instance(role: Role, config: SimConfig = FAST, incarnation: int = INCARNATION) -> AsyncIterator[Served]:
    instance = Instance(f"{role.value}-0", incarnation)
    async with running_engine(SimModel(config)) as engine:
        match role:
            case Role.PREFILL:
                made = prefill_instance(instance, engine, BUDGET_BYTES, cache_bytes=CACHE_BYTES)
            case Role.RELAY:
                made = relay_instance(instance, engine, BUDGET_BYTES)
            case Role.MAIN:
                made = main_instance(instance, engine, BUDGET_BYTES, CACHE_BYTES)
        async with made as served:
            yield served
            served.close()


def registering(served: Served, clock_s: Callable[[], float] = wall_clock_s) -> Callable[[grpc.aio.Server], Sequence[str]]:
    return lambda server: (*served.register(server), *add_diagnostics(server, served, clock_s))


@asynccontextmanager
async def running(
    role: Role, redis_url: str, *, address: str | None = None, config: SimConfig = FAST, clock_off_s: float = 0.0
) -> AsyncIterator[str]:
    """An instance that registers under `address`, by default its own, which is given; its wall clock is off by so much."""
    async with (
        served_instance(role, config) as served,
        serve("127.0.0.1:0", registering(served, lambda: wall_clock_s() + clock_off_s)) as server,
        RedisRegistry(redis_url) as registry,
        RedisPrefixCatalog(redis_url) as catalog,
        announced(registry, catalog, served, lambda: served.registration("a", address or server.address)),
    ):
        yield server.address


@asynccontextmanager
async def registered(registry: Registry, served: Served, address: str, **changes: object) -> AsyncIterator[None]:
    """A bare entry in the registry, with what is said of it changed so."""
    said = replace(served.registration("a", address), **changes)  # type: ignore[arg-type]
    async with heartbeat(registry, lambda: said):
        yield


async def diagnosed(redis_url: str, claims: Claims = CLAIMS, *, probes: bool = False) -> tuple[Facts, tuple[Finding, ...]]:
    """One look at the registry and no gateway: what is asked of instances is all there."""
    facts = await collect(Deployment(redis_url, None, probes, watch_s=0.0), wall_clock_s)
    return facts, examine(facts, claims)


def only(findings: Sequence[Finding], check: Check) -> Finding:
    """The one finding of a kind."""
    (found,) = (finding for finding in findings if finding.check is check)
    return found
