"""The registry's server is killed and started again, empty, while answers are being made."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from pdd.catalog.embedded import embedded_valkey
from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import MeshOptions
from tests.mesh.processes.sim import expected_text, full_tokens, until_main_is_known_to_have
from tests.mesh.services.instances import BLOCK_TOKENS, prompt
from tests.support.gateway import GatewayClient, asking

pytestmark = pytest.mark.processes

CLIENTS = 3
TOKENS = 40
LONG = 200  # longer than KV is on its way


async def killed(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)


def port_of(redis_url: str) -> int:
    port = urlsplit(redis_url).port
    assert port is not None
    return port


class Traffic:
    """Conversations that go on until told to stop; an answer that is wrong or missing ends the test."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self.answers = 0
        self.over = False

    async def run(self, client: int) -> None:
        ids = prompt(4 * BLOCK_TOKENS + client, seed=100 * client)
        while not self.over:
            reply = await self._gateway.ask(ids, TOKENS)
            assert reply.text == expected_text(ids, TOKENS)
            self.answers += 1

    async def more(self, answers: int) -> None:
        """Return once so many more have been given."""
        wanted = self.answers + answers
        while self.answers < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_answers_go_on_while_the_registry_is_killed_and_comes_back_empty() -> None:
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(AsyncExitStack())
        redis_url = await registry.enter_async_context(embedded_valkey())
        mesh = await stack.enter_async_context(LocalMesh(MeshOptions(redis_url=redis_url)))
        gateway = await stack.enter_async_context(asking(mesh.http_url))
        known = prompt(6 * BLOCK_TOKENS, seed=7)
        assert (await gateway.ask(known, LONG)).text == expected_text(known, LONG)  # main has made most of it
        await until_main_is_known_to_have(gateway, known)
        traffic = Traffic(gateway)
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(traffic.run(client))
            await traffic.more(CLIENTS)
            await killed(redis_url)
            await registry.aclose()
            await gateway.until("pdd_catalog_synced", 0)
            assert "prefix catalog" in (await gateway.ready())["degraded"][0]
            await traffic.more(3 * CLIENTS)
            # What was known goes on to count.
            assert (await gateway.ask(known, TOKENS)).main_hit_tokens == full_tokens(known)
            await registry.enter_async_context(embedded_valkey(port_of(redis_url)))
            await gateway.until("pdd_catalog_synced", 1)
            assert "degraded" not in await gateway.ready()
            await until_main_is_known_to_have(gateway, known)
            await traffic.more(3 * CLIENTS)
            traffic.over = True
        assert mesh.exits.empty()
        for code in ("peer_lost", "no_instance", "kv_refused"):
            assert await gateway.metric("pdd_mesh_errors_total", code=code) == 0
