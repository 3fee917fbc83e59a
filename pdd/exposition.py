"""Serves a registry of Prometheus metrics over HTTP, for processes that have no HTTP server of their own.

Called by the services' shell. What is in the registry is its caller's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from pdd.rpc.http import listening

STOP_GRACE_S = 0.5  # time that a scrape in progress has to end


class Labelled(Collector):
    """All metrics of a registry, each sample with some labels more: who it is that tells them."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in family.samples]
            yield family


@asynccontextmanager
async def serve_metrics(listen: str, registry: CollectorRegistry) -> AsyncIterator[str]:
    """GET /metrics on `listen` ("host:port", port 0 for any) until left; gives the address with its real port.

    Raises ListenError.
    """

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    async with listening(web.AppRunner(app, access_log=None, shutdown_timeout=STOP_GRACE_S), listen) as address:
        yield address
