"""An instance of each role over sim, with what it tells Prometheus, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from pdd.catalog.base import Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.catalog.publisher import publishing
from pdd.engine.base import Engine
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import Instance
from services.instances import Served, main_instance, prefill_instance, relay_instance
from services.metrics.decoder import DecoderMetrics
from services.metrics.exposed import InstanceMetrics, registry_of
from services.metrics.prefill import PrefillMetrics

BUDGET_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Metered:
    served: Served
    registry: CollectorRegistry

    def read(self, name: str, **labels: str) -> float:
        """The samples of a metric that have these labels, added up."""
        samples = (sample for family in self.registry.collect() for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@asynccontextmanager
async def metered_instance(role: Role, model: SimConfig | None = None) -> AsyncIterator[Metered]:
    """Half of the budget is the prefix cache's, which is published to a catalog of its own."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(BatchEngine(SimModel(model or SimConfig()), StepLimits(), InlineCompute()))
        metrics: InstanceMetrics = PrefillMetrics() if role is Role.PREFILL else DecoderMetrics()
        served = await stack.enter_async_context(_instance(role, engine, metrics))
        publisher = None
        if served.cache.limit_bytes:
            catalog = MemoryPrefixCatalog(MemoryRegistry(asyncio.get_running_loop().time))
            publisher = await stack.enter_async_context(publishing(catalog, served.instance, served.cache))
        yield Metered(served, registry_of(metrics, served, "a", publisher))


def _instance(role: Role, engine: Engine, metrics: InstanceMetrics) -> AbstractAsyncContextManager[Served]:
    instance, budget_bytes = Instance(f"{role.value}-0", 1), BUDGET_BLOCKS * engine.layout.block_bytes
    if isinstance(metrics, PrefillMetrics):
        return prefill_instance(instance, engine, budget_bytes, cache_bytes=budget_bytes // 2, observer=metrics)
    if role is Role.RELAY:
        return relay_instance(instance, engine, budget_bytes, observer=metrics)
    return main_instance(instance, engine, budget_bytes, budget_bytes // 2, observer=metrics)
