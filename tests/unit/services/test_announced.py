from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from pdd.catalog.base import Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import Instance, RequestId
from pdd.kv.cache import prefix_of
from services.announced import announced
from services.instances import Served, main_instance, relay_instance
from virtual.clock import run

BUDGET_BYTES = 1 << 30
INSTANCE = Instance("main-0", 1)


@asynccontextmanager
async def serving(role: Role) -> AsyncIterator[Served]:
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        if role is Role.RELAY:
            async with relay_instance(INSTANCE, engine, BUDGET_BYTES) as served:
                yield served
        else:
            async with main_instance(INSTANCE, engine, BUDGET_BYTES, BUDGET_BYTES) as served:
                yield served


@asynccontextmanager
async def known(role: Role) -> AsyncIterator[tuple[Served, MemoryRegistry, MemoryPrefixCatalog]]:
    registry = MemoryRegistry(asyncio.get_running_loop().time)
    catalog = MemoryPrefixCatalog(registry)
    async with serving(role) as served:
        async with announced(registry, catalog, served, partial(served.registration, "b", "main-0:1")):
            yield served, registry, catalog
        assert await registry.instances() == ()
        assert await catalog.snapshot(INSTANCE) is None


def test_what_is_cached_is_in_the_catalog_and_its_state_in_the_registration() -> None:
    async def main() -> None:
        async with known(Role.MAIN) as (served, registry, catalog):
            tokens, block_bytes = served.engine.layout.block_tokens, served.engine.layout.block_bytes
            prefix = prefix_of(tuple(range(3 * tokens)), tokens, "tenant")
            assert served.cache.keep_payloads(RequestId(1, 1), prefix, 0, [b"kv"] * 3, block_bytes) == 3
            await asyncio.sleep(3.0)  # a few heartbeats
            held = await catalog.snapshot(INSTANCE)
            assert held is not None
            assert held.hashes == set(prefix.hashes)
            assert [one.cached for one in await registry.instances()] == [held.state]
            assert await catalog.longest(prefix.hashes, [INSTANCE]) == {INSTANCE: 3}

    run(main)


def test_instance_that_keeps_no_prefix_cache_publishes_nothing_and_says_so() -> None:
    async def main() -> None:
        async with known(Role.RELAY) as (_, registry, catalog):
            await asyncio.sleep(3.0)
            assert await catalog.snapshot(INSTANCE) is None
            assert [one.cached for one in await registry.instances()] == [None]

    run(main)
