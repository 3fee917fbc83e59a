from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import IncompatibleInstance, RegistryUnavailable
from pdd.catalog.embedded import EmbeddedValkeyError, embedded_valkey
from pdd.catalog.redis import RedisRegistry
from pdd.rpc.errors import StartupError
from tests.unit.catalog.samples import LAYOUT, registration

LONG_S = 60.0


@pytest.fixture
async def client(valkey_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey_url) as opened:
        await opened.flushall()
        yield opened


@pytest.fixture
async def registry(valkey_url: str, client: Redis) -> AsyncIterator[RedisRegistry]:
    async with RedisRegistry(valkey_url) as opened:
        yield opened


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def commands(client: Redis) -> int:
    """How many commands clients have sent, scripts as one."""
    stats = await client.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats)


async def test_listing_takes_one_round_trip_however_many_there_are(registry: RedisRegistry, client: Redis) -> None:
    for number in range(50):
        await registry.announce(registration(f"main-{number}"), LONG_S)
    before = await commands(client)
    assert len(await registry.instances()) == 50
    assert await commands(client) - before == 1


async def test_renewal_takes_one_round_trip(registry: RedisRegistry, client: Redis) -> None:
    await registry.announce(registration(), LONG_S)
    before = await commands(client)
    await registry.announce(registration(load=0.5), LONG_S)
    assert await commands(client) - before == 1


async def test_of_two_incompatible_newcomers_at_once_exactly_one_joins(valkey_url: str, client: Redis) -> None:
    other = dataclasses.replace(LAYOUT, layers=12)
    async with RedisRegistry(valkey_url) as one, RedisRegistry(valkey_url) as two:
        for _ in range(20):
            await client.flushall()
            answers = await asyncio.gather(
                one.announce(registration("one"), LONG_S),
                two.announce(registration("two", layout=other), LONG_S),
                return_exceptions=True,
            )
            assert sorted(type(answer).__name__ for answer in answers) == [IncompatibleInstance.__name__, "NoneType"]
            assert len(await one.instances()) == 1


async def test_many_join_at_once(valkey_url: str, client: Redis) -> None:
    async with RedisRegistry(valkey_url) as registry:
        await asyncio.gather(*(registry.announce(registration(f"main-{number}"), LONG_S) for number in range(20)))
        assert len(await registry.instances()) == 20


async def test_ids_that_ran_out_leave_the_index(registry: RedisRegistry, client: Redis) -> None:
    await registry.announce(registration(), LONG_S)
    await client.delete("pdd:instance:main-0")
    assert await registry.instances() == ()
    assert await client.smembers("pdd:instances") == set()


async def test_entry_that_cannot_be_read_hides_nobody(registry: RedisRegistry, client: Redis) -> None:
    await registry.announce(registration(), LONG_S)
    await client.sadd("pdd:instances", "foreign")
    await client.set("pdd:instance:foreign", b"not one of ours")
    assert await registry.instances() == (registration(),)


async def test_server_that_is_away_is_named_without_its_password() -> None:
    async with embedded_valkey() as url:
        address = url.removeprefix("redis://")
    async with RedisRegistry(f"redis://user:secret@{address}") as registry:
        for call in (registry.instances(), registry.announce(registration(), 1.0), registry.withdraw(registration().instance)):
            with pytest.raises(RegistryUnavailable) as error:
                await call
            assert f"redis://{address}" in str(error.value)
            assert "secret" not in str(error.value)


async def test_server_that_refuses_commands_is_unavailable(valkey_url: str, client: Redis) -> None:
    address = valkey_url.removeprefix("redis://")
    async with RedisRegistry(f"redis://user:secret@{address}") as registry:
        with pytest.raises(RegistryUnavailable, match="password"):
            await registry.instances()


async def test_registry_works_again_once_its_server_is_back() -> None:
    async with embedded_valkey() as url:
        registry = RedisRegistry(url)
        await registry.announce(registration(), LONG_S)
    async with registry:
        with pytest.raises(RegistryUnavailable):
            await registry.instances()
        async with embedded_valkey(port_of(url)):
            await registry.announce(registration(), LONG_S)
            assert await registry.instances() == (registration(),)


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://", "redis://host:port", "redis://host:99999"])
def test_bad_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(StartupError, match="redis://host:port/0"):
        RedisRegistry(url)


async def test_embedded_server_on_a_taken_port_is_an_error_that_names_it(valkey_url: str) -> None:
    port = port_of(valkey_url)
    with pytest.raises(EmbeddedValkeyError, match=str(port)):
        async with embedded_valkey(port):
            pass
