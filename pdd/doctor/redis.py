"""How the registry's Redis or Valkey is. Called by `collect`."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from pdd.catalog.redis_server import RedisServer
from pdd.doctor.facts import RedisFacts

PINGS = 3  # of which the shortest counts; the first one connects


async def look_at_redis(server: RedisServer) -> RedisFacts:
    """Raises RegistryUnavailable."""
    now_s = asyncio.get_running_loop().time

    async def pings(client: Redis) -> float:
        took = []
        for _ in range(PINGS):
            start_s = now_s()
            await client.ping()
            took.append(now_s() - start_s)
        return min(took)

    ping_s: float = await server.call(pings)
    memory = await server.call(lambda client: client.info("memory"))
    stats = await server.call(lambda client: client.info("stats"))
    return RedisFacts(
        name=server.name,
        ping_s=ping_s,
        used_bytes=int(memory["used_memory"]),
        max_bytes=int(memory["maxmemory"]),
        eviction_policy=str(memory["maxmemory_policy"]),
        evicted_keys=int(stats["evicted_keys"]),
    )
