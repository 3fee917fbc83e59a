"""Each fault of a deployment, over real sockets and a real registry, is named by the doctor, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import Role
from pdd.catalog.prefixes import CacheSnapshot, CacheState, digest
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.doctor.collect import Deployment, collect
from pdd.doctor.facts import GatewayAway, RedisAway, RedisFacts, Report, Silence, Unreached
from pdd.doctor.findings import Check, Severity
from pdd.doctor.instances import ASK_TIMEOUT_S
from pdd.engine.sim.model import SimConfig
from pdd.rpc.server import serve
from tests.mesh.doctor.deployment import (
    CLAIMS,
    diagnosed,
    only,
    registered,
    registering,
    running,
    served_instance,
    wall_clock_s,
)


@asynccontextmanager
async def trio(redis_url: str, *without: Role) -> AsyncIterator[dict[Role, str]]:
    """One healthy instance of each role but those; their addresses."""
    async with AsyncExitStack() as stack:
        roles = [role for role in Role if role not in without]
        yield {role: await stack.enter_async_context(running(role, redis_url)) for role in roles}


async def test_a_healthy_deployment_has_no_findings(redis_url: str) -> None:
    async with trio(redis_url):
        facts, findings = await diagnosed(redis_url)
    assert findings == ()
    assert isinstance(facts.redis, RedisFacts)
    assert [one.registration.role for one in facts.instances] == [Role.MAIN, Role.PREFILL, Role.RELAY]
    assert all(isinstance(one.found, Report) for one in facts.instances)
    assert [len(one.cache_looks) > 0 for one in facts.instances] == [True, True, False]


async def test_an_advertised_address_at_which_nobody_listens_is_named(redis_url: str) -> None:
    async with trio(redis_url, Role.RELAY), running(Role.RELAY, redis_url, address="127.0.0.1:1"):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.WRONG_ADDRESS, "relay-0")
    assert "127.0.0.1:1" in finding.what
    assert "PDD_ADVERTISE" in finding.do


async def test_an_advertised_address_that_is_no_name_is_named(redis_url: str) -> None:
    async with trio(redis_url, Role.PREFILL), running(Role.PREFILL, redis_url, address="prefill.invalid:50051"):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.check, finding.subject) == (Check.WRONG_ADDRESS, "prefill-0")
    assert "prefill.invalid:50051" in finding.what


async def test_an_advertised_address_that_leads_to_another_instance_names_both(redis_url: str) -> None:
    async with trio(redis_url, Role.RELAY) as addresses, running(Role.RELAY, redis_url, address=addresses[Role.MAIN]):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.check, finding.subject) == (Check.WRONG_ADDRESS, "relay-0")
    assert f"{addresses[Role.MAIN]}, leads to main main-0" in finding.what


async def test_an_address_that_leads_to_an_earlier_process_of_the_same_id_is_named(redis_url: str) -> None:
    async with (
        trio(redis_url, Role.MAIN),
        served_instance(Role.MAIN, incarnation=1) as earlier,
        served_instance(Role.MAIN, incarnation=3) as now,
        serve("127.0.0.1:0", registering(earlier)) as server,
        RedisRegistry(redis_url) as registry,
        registered(registry, now, server.address),
    ):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.check, finding.subject) == (Check.WRONG_ADDRESS, "main-0")
    assert str(earlier.instance) in finding.what


async def test_an_instance_without_diagnostics_is_of_another_version(redis_url: str) -> None:
    async with (
        trio(redis_url, Role.RELAY),
        served_instance(Role.RELAY) as served,
        serve("127.0.0.1:0", served.register) as server,
        RedisRegistry(redis_url) as registry,
        registered(registry, served, server.address),
    ):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.check, finding.subject) == (Check.OTHER_VERSION, "relay-0")


async def test_a_main_that_accepts_and_never_answers_holds_up_nobody(redis_url: str) -> None:
    silenced = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silenced.wait()
        writer.close()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    async with trio(redis_url, Role.MAIN), running(Role.MAIN, redis_url, address=f"127.0.0.1:{port}"):
        async with asyncio.timeout(2 * ASK_TIMEOUT_S):
            facts, (finding,) = await diagnosed(redis_url, probes=True)
    silenced.set()
    mute.close()
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.UNREACHABLE, "main-0")
    assert "outage" in finding.do
    main = facts.instances[0].found
    assert isinstance(main, Unreached)
    assert main.silence is Silence.NO_ANSWER


async def test_layouts_that_differ_are_named_with_both_values(redis_url: str) -> None:
    async with (
        trio(redis_url, Role.MAIN),
        served_instance(Role.MAIN, SimConfig(block_tokens=32)) as main,
        serve("127.0.0.1:0", registering(main)) as server,
        RedisRegistry(redis_url) as registry,
        # As it would have registered while it had the others' settings.
        registered(registry, main, server.address, layout=(await layout_of(redis_url))),
    ):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.LAYOUT_MISMATCH, "main-0")
    assert "block_tokens: 16 against 32" in finding.what
    assert "PDD_BLOCK_TOKENS" in finding.do


async def layout_of(redis_url: str) -> object:
    async with RedisRegistry(redis_url) as registry:
        return (await registry.instances())[0].layout


async def test_another_model_than_the_gateways_is_named_for_each_instance(redis_url: str) -> None:
    async with trio(redis_url):
        _, findings = await diagnosed(redis_url, replace(CLAIMS, model_digest="another"))
    assert {(finding.check, finding.subject) for finding in findings} == {
        (Check.LAYOUT_MISMATCH, f"{role.value}-0") for role in Role
    }


@pytest.mark.parametrize("off_s", [5.0, -5.0])
async def test_a_wall_clock_that_is_5_s_off_is_named(redis_url: str, off_s: float) -> None:
    async with trio(redis_url, Role.MAIN), running(Role.MAIN, redis_url, clock_off_s=off_s):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.CLOCK_SKEW, "main-0")
    assert f"5.0 s {'ahead of' if off_s > 0 else 'behind'}" in finding.what
    assert "NTP" in finding.do


async def test_a_redis_that_is_down_is_named_and_nothing_else_is() -> None:
    facts, (finding,) = await diagnosed("redis://127.0.0.1:1/0")
    assert isinstance(facts.redis, RedisAway)
    assert (finding.severity, finding.check) == (Severity.FAULT, Check.REDIS_AWAY)
    assert "redis://127.0.0.1:1/0" in finding.what


async def test_a_redis_that_may_evict_keys_is_named(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.config_set("maxmemory", "100mb")
        await redis.config_set("maxmemory-policy", "allkeys-lru")
    async with trio(redis_url):
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.severity, finding.check) == (Severity.WARNING, Check.REDIS_EVICTS)
    assert "allkeys-lru" in finding.what


async def test_a_cache_that_the_catalog_has_otherwise_is_named(redis_url: str) -> None:
    foreign = frozenset({1, 2, 3})
    state = CacheState(1, len(foreign), digest(foreign))
    async with (
        trio(redis_url, Role.MAIN),
        served_instance(Role.MAIN) as main,
        serve("127.0.0.1:0", registering(main)) as server,
        RedisRegistry(redis_url) as registry,
        RedisPrefixCatalog(redis_url) as catalog,
        registered(registry, main, server.address, cached=state),
    ):
        await catalog.publish_all(main.instance, CacheSnapshot(state, foreign), ttl_s=60.0)
        _, (finding,) = await diagnosed(redis_url)
    assert (finding.severity, finding.check, finding.subject) == (Severity.WARNING, Check.CACHE_MISMATCH, "main-0")
    assert "it caches 0 blocks" in finding.what
    assert "3 blocks" in finding.what


async def test_a_gateway_that_is_not_there_is_named(redis_url: str) -> None:
    facts = await collect(Deployment(redis_url, "http://127.0.0.1:1", probes=False, watch_s=0.0), wall_clock_s)
    assert isinstance(facts.gateway, GatewayAway)


async def test_what_answers_and_is_no_instance_has_no_layout_or_clock(redis_url: str) -> None:
    async def answer_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer_http, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    async with trio(redis_url, Role.RELAY), running(Role.RELAY, redis_url, address=f"127.0.0.1:{port}"):
        _, findings = await diagnosed(redis_url)
    web.close()
    assert only(findings, Check.UNREACHABLE).subject == "relay-0"
