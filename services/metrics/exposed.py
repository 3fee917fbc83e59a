"""Puts together what an instance tells Prometheus, and serves it.

Called by the shell. Every sample says whose it is, in the labels `role` and `instance_id`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, ProcessCollector

from pdd.catalog.base import Role
from pdd.catalog.publisher import CachePublisher
from pdd.exposition import Labelled, serve_metrics
from services.instances import Served
from services.metrics.decoder import DecoderMetrics
from services.metrics.prefill import PrefillMetrics
from services.metrics.state import InstanceState, PrefillState, ReceiverState, WanTraffic
from services.prefill.worker import Worker

InstanceMetrics = PrefillMetrics | DecoderMetrics


def registry_of(
    metrics: InstanceMetrics, served: Served, site: str, publisher: CachePublisher | None = None
) -> CollectorRegistry:
    """`metrics` with what is read at each scrape. `publisher` is what tells the catalog, where anything does."""
    registry, host = metrics.registry, served.host
    published = None if publisher is None else publisher.counts
    ProcessCollector(registry=registry)
    registry.register(InstanceState(served, site, published))
    if isinstance(host, Worker):
        registry.register(PrefillState(host))
    else:
        registry.register(ReceiverState(host))
    if served.role is Role.MAIN and isinstance(metrics, DecoderMetrics) and not isinstance(host, Worker):
        registry.register(WanTraffic(host, metrics.kv_bytes, published))
    labelled = CollectorRegistry()
    labelled.register(Labelled(registry, {"role": served.role.value, "instance_id": served.instance.id}))
    return labelled


@asynccontextmanager
async def exposed(listen: str, registry: Callable[[], CollectorRegistry]) -> AsyncIterator[str | None]:
    """Serve the registry on `listen` until left; where that is empty, none is made or served. Raises ListenError."""
    if not listen:
        yield None
        return
    async with serve_metrics(listen, registry()) as address:
        yield address
