"""An instance that the mesh knows of: in the registry, and what it caches in the prefix catalog.

Called by the shell and by `virtual.mesh`. Owns the order: what is cached stays published until it has left the registry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from pdd.catalog.base import Registration, Registry
from pdd.catalog.heartbeat import heartbeat
from pdd.catalog.prefixes import PrefixCatalog
from pdd.catalog.publisher import CachePublisher, PublisherRules, publishing
from services.instances import Served


@asynccontextmanager
async def announced(
    registry: Registry,
    catalog: PrefixCatalog,
    served: Served,
    describe: Callable[[], Registration],
    rules: PublisherRules | None = None,
) -> AsyncIterator[CachePublisher | None]:
    """Announce `describe()` and publish the prefix cache until the context is left. Raises what `heartbeat` does.

    An instance that keeps no prefix cache publishes nothing, and its registration says so.
    """
    if not served.cache.limit_bytes:
        async with heartbeat(registry, describe):
            yield None
        return
    async with (
        publishing(catalog, served.instance, served.cache, rules) as publisher,
        heartbeat(registry, lambda: replace(describe(), cached=publisher.state)),
    ):
        yield publisher
