"""What the three entry points share: an engine that is up, and an instance that serves and is announced until told to stop.

Called by each service's `__main__`. Owns the order of starting and stopping; knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio

from pdd.catalog.publisher import PublisherRules
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.engine.base import Engine, EngineFault
from pdd.engine.build import build_engine
from pdd.engine.config import EngineSettings
from pdd.identity import Instance, new_incarnation
from pdd.rpc.errors import StartupError
from pdd.rpc.server import serve
from pdd.telemetry import get_logger
from services.advertised import LeaseAddress, advertised
from services.announced import announced
from services.config import ServiceSettings
from services.instances import Served

log = get_logger(__name__)


def new_instance(settings: ServiceSettings) -> Instance:
    return Instance(settings.instance_id, new_incarnation(random.SystemRandom().getrandbits))  # noqa: TID251  # chance comes in here


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
    lease_address: LeaseAddress | None = None,
) -> None:
    """Serve and be announced until `stop` is set; then leave in good order: not ready, streams closed, withdrawn.

    `lease_address` turns the address that peers would use into the one they are to use.
    """
    names: list[str] = []
    rules = PublisherRules(interval_s=settings.catalog_interval_ms / 1000)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        names.extend(served.register(server))
        return names

    async with (
        RedisRegistry(settings.redis_url) as registry,
        RedisPrefixCatalog(settings.redis_url) as catalog,
        serve(settings.listen, register) as server,
        advertised(settings.advertise or server.address, lease_address) as place,
        announced(registry, catalog, served, lambda: served.registration(settings.site, place.address), rules),
    ):
        log.info("ready", instance=str(served.instance), listening=server.address, advertised=place.address)
        await stop.wait()
        log.info("stopping", instance=str(served.instance))
        for name in names:
            await server.set_serving(name, False)
        served.close()
