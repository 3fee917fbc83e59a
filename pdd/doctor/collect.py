"""Gathers the facts of a deployment: from Redis, from every instance that it lists, and from the gateway.

Called by the command line, where the gateway runs. Owns the order and the bounds: nothing here takes longer than its deadline,
and all of it some 10 s, however many of the instances are dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from pdd.catalog.base import Registration, Registry, RegistryUnavailable, Role
from pdd.catalog.prefixes import PrefixCatalog
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.catalog.redis_server import RedisServer
from pdd.catalog.refusals import Refusals
from pdd.doctor.facts import CacheLook, Facts, GatewayAway, GatewayFacts, Goodput, InstanceFacts, RedisAway, Report, Unmeasured
from pdd.doctor.gateway import look_at_gateway
from pdd.doctor.instances import ask, look_at_cache, probe
from pdd.doctor.redis import look_at_redis
from pdd.identity import Instance

REDIS_TIMEOUT_S = 3.0
WATCH_S = 3.5  # a heartbeat lives for 3 s
LOOK_PAUSE_S = 0.5
PROBE_S = 1.5
ALL_PROBES_S = 4.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where to look."""

    redis_url: str
    gateway_url: str | None  # http://host:port; None leaves it out
    probes: bool = True  # send up to 16 MiB to each main
    watch_s: float = WATCH_S  # for heartbeats


async def collect(deployment: Deployment, wall_clock_s: Callable[[], float]) -> Facts:
    """`wall_clock_s` gives this machine's Unix time. Raises StartupError for a Redis URL that is none."""
    async with _sources(deployment.redis_url) as sources, asyncio.TaskGroup() as tasks:
        gateway = tasks.create_task(_gateway(deployment))
        facts = tasks.create_task(_mesh(sources, deployment, wall_clock_s))
    return replace(facts.result(), gateway=gateway.result())


@dataclass(frozen=True, slots=True)
class _Sources:
    """What is read of the registry's server."""

    server: RedisServer
    registry: Registry
    catalog: PrefixCatalog
    refusals: Refusals


@asynccontextmanager
async def _sources(url: str) -> AsyncIterator[_Sources]:
    server = RedisServer(url, REDIS_TIMEOUT_S)
    try:
        async with (
            RedisRegistry(url) as registry,
            RedisPrefixCatalog(url, deadline_s=REDIS_TIMEOUT_S) as catalog,
            Refusals(url) as refusals,
        ):
            yield _Sources(server, registry, catalog, refusals)
    finally:
        await server.close()


async def _gateway(deployment: Deployment) -> GatewayFacts | GatewayAway | None:
    return None if deployment.gateway_url is None else await look_at_gateway(deployment.gateway_url)


async def _mesh(sources: _Sources, deployment: Deployment, wall_clock_s: Callable[[], float]) -> Facts:
    try:
        redis = await look_at_redis(sources.server)
        first = await sources.registry.instances()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch(sources.registry, first, deployment.watch_s))
            instances = tasks.create_task(_instances(first, sources.catalog, deployment.probes, wall_clock_s))
        refused = await sources.refusals.noted()
    except* RegistryUnavailable as group:
        away = RedisAway(_first_words(group))
    else:
        return Facts(redis, watch.result(), refused, instances.result())
    return Facts(away)


def _first_words(error: BaseException) -> str:
    return _first_words(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else str(error)


async def _watch(registry: Registry, first: Sequence[Registration], duration_s: float) -> tuple[Sequence[Registration], ...]:
    """Looks into the registry, the first among them."""
    now_s = asyncio.get_running_loop().time
    end_s, looks = now_s() + duration_s, [first]
    while now_s() < end_s:
        await asyncio.sleep(LOOK_PAUSE_S)
        looks.append(await registry.instances())
    return tuple(looks)


async def _instances(
    registrations: Sequence[Registration], catalog: PrefixCatalog, probes: bool, wall_clock_s: Callable[[], float]
) -> tuple[InstanceFacts, ...]:
    found = await asyncio.gather(*(ask(one, wall_clock_s) for one in registrations))
    reached = [
        one
        for one, report in zip(registrations, found, strict=True)
        if isinstance(report, Report) and report.instance == one.instance
    ]
    async with asyncio.TaskGroup() as tasks:
        caches = tasks.create_task(_caches((one for one in reached if one.cached is not None), catalog))
        links = tasks.create_task(_links([one for one in reached if one.role is Role.MAIN] if probes else []))
    return tuple(
        InstanceFacts(one, report, links.result().get(one.instance), caches.result().get(one.instance, ()))
        for one, report in zip(registrations, found, strict=True)
    )


async def _caches(registrations: Iterable[Registration], catalog: PrefixCatalog) -> Mapping[Instance, tuple[CacheLook, ...]]:
    async with asyncio.TaskGroup() as tasks:
        looks = {one.instance: tasks.create_task(look_at_cache(one, catalog)) for one in registrations}
    return {instance: task.result() for instance, task in looks.items()}


async def _links(mains: Sequence[Registration]) -> Mapping[Instance, Goodput | Unmeasured]:
    """One after another: mains of a site share a line."""
    duration_s = min(PROBE_S, ALL_PROBES_S / max(1, len(mains)))
    return {one.instance: await probe(one.address, duration_s) for one in mains}
