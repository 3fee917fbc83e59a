"""What the gateway believes of prefix caches, while the processes that it is about end and begin anew."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import Role
from pdd.catalog.embedded import embedded_valkey
from pdd.catalog.publisher import PublisherRules
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import MeshOptions, Pipeline
from pdd.kv.hashing import chain_hashes
from tests.eventually import POLL_S
from tests.mesh.processes.services import running_service
from tests.mesh.processes.sim import expected_text, full_tokens, until_main_is_known_to_have
from tests.mesh.services.instances import BLOCK_TOKENS, prompt
from tests.support.gateway import GatewayClient, asking
from tests.support.process import DEADLINE_S, running_module
from tests.support.restarts import Restarts, restarting

pytestmark = pytest.mark.processes

IDS = prompt(8 * BLOCK_TOKENS + 5)  # 2.9 MB of KV
TOKENS = 200
LONG = 600  # an answer that is worth its KV's way to main
RATE_MBIT = 20.0  # IDS takes over a second: far over the stall budget


async def test_block_names_do_not_depend_on_the_seed_of_pythons_hashes() -> None:
    async with AsyncExitStack() as stack:
        redis_url = await stack.enter_async_context(embedded_valkey())
        for seed, role in enumerate(Role, start=1):
            await stack.enter_async_context(running_service(role, redis_url, PYTHONHASHSEED=str(seed)))
        ports = {"PDD_HTTP": "127.0.0.1:0", "PDD_LISTEN": "127.0.0.1:0", "PDD_ENGINE": "sim"}
        own = {"PDD_REDIS_URL": redis_url, "PYTHONHASHSEED": "99"}
        process = await stack.enter_async_context(running_module("gateway", ports | own))
        url: str = json.loads(await process.until('"ready"'))["http"]
        gateway = await stack.enter_async_context(asking(url))
        await gateway.until_connected(*(f"{role.value}-0" for role in Role))

        assert (await gateway.ask(IDS, TOKENS)).text == expected_text(IDS, TOKENS)
        await until_main_is_known_to_have(gateway, IDS)
        crossed = await gateway.metric("pdd_wan_kv_bytes_total")
        again = await gateway.ask(IDS, TOKENS)
        assert again.text == expected_text(IDS, TOKENS)
        assert (again.main_hit_tokens, again.prefill_hit_tokens) == (full_tokens(IDS), full_tokens(IDS))
        assert again.body["usage"]["prompt_tokens_details"]["cached_tokens"] == full_tokens(IDS)
        assert await gateway.metric("pdd_wan_kv_bytes_total") == crossed


@pytest.fixture
async def mesh() -> AsyncIterator[LocalMesh]:
    options = MeshOptions(pipeline=Pipeline.AUTO, mains=1, rate_mbit=RATE_MBIT)
    async with LocalMesh(options) as mesh:
        yield mesh


@pytest.fixture
async def gateway(mesh: LocalMesh) -> AsyncIterator[GatewayClient]:
    async with asking(mesh.http_url) as gateway:
        yield gateway


@pytest.fixture
async def restarts(mesh: LocalMesh) -> AsyncIterator[Restarts]:
    async with restarting(mesh) as restarts:
        yield restarts


async def warm(gateway: GatewayClient) -> None:
    """Have main make most of an answer, and the gateway know of what it caches."""
    assert (await gateway.ask(IDS, TOKENS, LONG)).text == expected_text(IDS, TOKENS)
    await until_main_is_known_to_have(gateway, IDS)
    plan = (await gateway.ask(IDS, 1, LONG)).plan
    assert (plan["pipeline"], plan["code"]) == ("direct", "high_hit")


async def test_what_a_main_had_cached_does_not_count_after_its_restart_under_the_same_id(
    gateway: GatewayClient, restarts: Restarts
) -> None:
    await warm(gateway)
    await restarts.restart(gateway, "main-0")
    reply = await gateway.ask(IDS, TOKENS, LONG)
    assert (reply.plan["pipeline"], reply.plan["code"], reply.main_hit_tokens) == ("relay", "low_hit", 0)
    assert reply.prefill_hit_tokens == full_tokens(IDS)
    assert reply.text == expected_text(IDS, TOKENS)
    assert await gateway.metric("pdd_decoders_joined_total", role="relay") == 0


async def test_requests_while_a_main_restarts_are_answered_rightly_or_refused_by_name(
    gateway: GatewayClient, restarts: Restarts
) -> None:
    await warm(gateway)
    told: list[str] = []

    async def go_on_asking() -> None:
        while True:
            reply = await gateway.ask(IDS, 10, LONG)
            if reply.status == 200:
                assert reply.text == expected_text(IDS, 10)
                told.append("answered")
            else:
                told.append(reply.body["error"]["code"])

    async with asyncio.TaskGroup() as group:
        asker = group.create_task(go_on_asking())
        await restarts.restart(gateway, "main-0")
        answered = told.count("answered")
        async with asyncio.timeout(DEADLINE_S):
            while told.count("answered") < answered + 3:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        asker.cancel()
    assert set(told) <= {"answered", "peer_lost", "no_instance"}
    assert "no_instance" in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_a_main_had_cached_is_gone_with_it(
    mesh: LocalMesh, gateway: GatewayClient, restarts: Restarts, number: signal.Signals
) -> None:
    await warm(gateway)
    async with RedisRegistry(mesh.redis_url) as registry, RedisPrefixCatalog(mesh.redis_url) as catalog:
        (main,) = [one for one in await registry.instances() if one.role is Role.MAIN]
        hashes = chain_hashes(IDS, BLOCK_TOKENS, "")
        assert await catalog.longest(hashes, [main.instance]) == {main.instance: len(hashes)}
        await restarts.kill("main-0", number)
        if number is signal.SIGTERM:
            assert await catalog.snapshot(main.instance) is None
        async with asyncio.timeout(DEADLINE_S):
            while (await catalog.longest(hashes, [main.instance]))[main.instance]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    # What a killed one has left counts for nobody, and runs out by itself.
    async with Redis.from_url(mesh.redis_url) as redis:
        ttls_ms = [await redis.pttl(key) for key in await redis.keys("pdd:cached:main-0:*")]
    assert len(ttls_ms) == (0 if number is signal.SIGTERM else 2)
    assert all(0 < ttl_ms <= PublisherRules().ttl_s * 1000 for ttl_ms in ttls_ms)


async def test_a_gateway_that_has_restarted_and_a_registry_that_was_flushed_cost_hits_and_nothing_else(
    mesh: LocalMesh, gateway: GatewayClient, restarts: Restarts
) -> None:
    await warm(gateway)
    await restarts.kill("gateway")
    await restarts.start("gateway")
    async with asyncio.timeout(DEADLINE_S):
        while not await gateway.is_up():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    await gateway.until_connected("prefill-0", "relay-0", "main-0")
    async with Redis.from_url(mesh.redis_url) as redis:
        await redis.flushall()
    hits: list[int] = []
    synced = [1.0]
    async with asyncio.timeout(DEADLINE_S):
        # Until the gateway has noticed, and has every hit again.
        while 0 not in synced or synced[-1] == 0 or hits[-1] != full_tokens(IDS):
            reply = await gateway.ask(IDS, 20, LONG)
            assert reply.text == expected_text(IDS, 20)
            hits.append(reply.main_hit_tokens)
            synced.append(await gateway.metric("pdd_catalog_synced"))
    assert set(hits) <= {0, full_tokens(IDS)}
