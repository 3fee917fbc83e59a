"""Prefill, relay and main as real processes over sim, found through a registry as the gateway finds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdd.catalog.base import Registration, Role
from pdd.catalog.redis import RedisRegistry
from tests.eventually import POLL_S
from tests.support.process import DEADLINE_S, ModuleProcess, running_module

# Payloads as short as their digests, and steps that take no time.
SIM = {"PDD_ENGINE": "sim", "PDD_SIM_PROFILE": "instant", "PDD_SIM_PAD": "false", "PDD_LISTEN": "127.0.0.1:0"}


@asynccontextmanager
async def running_service(role: Role, redis_url: str, **environment: str) -> AsyncIterator[ModuleProcess]:
    name = f"{role.value}-0"
    own = {"PDD_INSTANCE_ID": name, "PDD_REDIS_URL": redis_url}
    async with running_module(f"services.{role.value}", {**SIM, **own, **environment}) as process:
        yield process


async def registered(redis_url: str, count: int) -> dict[Role, Registration]:
    """Everyone in the registry, once there are `count`. Raises TimeoutError."""
    async with RedisRegistry(redis_url) as registry, asyncio.timeout(DEADLINE_S):
        while True:
            found = await registry.instances()
            if len(found) >= count:
                return {registration.role: registration for registration in found}
            await asyncio.sleep(POLL_S)
