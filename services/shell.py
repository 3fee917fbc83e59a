"""What the three entry points share: an engine that is up, and an instance that serves and is announced until told to stop.

Called by each service's `__main__`. Owns the order of starting and stopping; knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import grpc.aio

from pdd.catalog.publisher import PublisherRules
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.catalog.refusals import noting_refusal
from pdd.engine.base import Engine, EngineFault
from pdd.engine.build import build_engine
from pdd.engine.config import EngineSettings
from pdd.identity import Instance, new_incarnation
from pdd.rpc.errors import StartupError
from pdd.rpc.server import serve
from pdd.telemetry import get_logger
from pdd.tracing.running import running_tracer
from pdd.tracing.settings import TraceSettings
from pdd.tracing.tracer import Tracer
from services.advertised import LeaseAddress, advertised
from services.announced import announced
from services.config import ServiceSettings
from services.diagnostics import add_diagnostics
from services.instances import Served
from services.metrics.exposed import InstanceMetrics, exposed, registry_of

log = get_logger(__name__)


def new_instance(settings: ServiceSettings) -> Instance:
    return Instance(settings.instance_id, new_incarnation(random.SystemRandom().getrandbits))  # noqa: TID251  # chance comes in here


def wall_clock_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251  # and the date, for diagnostics


def traced(settings: TraceSettings, role: str, instance: Instance) -> AbstractAsyncContextManager[Tracer | None]:
    """The instance's tracer, as long as the context lasts; None where traces are off. Entering raises StartupError."""
    random_bits = random.SystemRandom().getrandbits  # noqa: TID251  # chance for span ids
    return running_tracer(settings, role, instance, random_bits=random_bits, unix_offset_s=_wall_clock_offset_s)


def _wall_clock_offset_s() -> float:
    return wall_clock_s() - time.monotonic()  # noqa: TID251  # which is the loop's clock


@asynccontextmanager
async def running_engine(settings: EngineSettings) -> AsyncIterator[Engine]:
    """An entered engine. Raises StartupError where it can't be built or loaded."""
    async with AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(build_engine(settings))
        except EngineFault as fault:
            raise StartupError(f"the {settings.engine} engine can't start: {fault}") from fault
        yield engine


async def serve_until(
    stop: asyncio.Event,
    settings: ServiceSettings,
    served: Served,
    metrics: InstanceMetrics,
    lease_address: LeaseAddress | None = None,
) -> None:
    """Serve and be announced until `stop` is set; then leave in good order: not ready, streams closed, withdrawn.

    `metrics` was told of the instance as its observer. `lease_address` turns the address that peers would use into the one they
    are to use.
    """
    names: list[str] = []
    rules = PublisherRules(interval_s=settings.catalog_interval_ms / 1000)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        names.extend(served.register(server))
        names.extend(add_diagnostics(server, served, wall_clock_s))
        return names

    async with (
        RedisRegistry(settings.redis_url) as registry,
        RedisPrefixCatalog(settings.redis_url) as catalog,
        serve(settings.listen, register) as server,
        advertised(settings.advertise or server.address, lease_address) as place,
        noting_refusal(settings.redis_url, served.instance),
        announced(registry, catalog, served, lambda: served.registration(settings.site, place.address), rules) as publisher,
        exposed(settings.metrics, lambda: registry_of(metrics, served, settings.site, publisher)) as scraped,
    ):
        log.info("ready", instance=str(served.instance), listening=server.address, advertised=place.address, metrics=scraped)
        await stop.wait()
        log.info("stopping", instance=str(served.instance))
        for name in names:
            await server.set_serving(name, False)
        served.close()
