from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from pdd.catalog.base import RegistryUnavailable
from pdd.catalog.redis_server import RedisServer, Script

NOWHERE = "redis://user:secret@127.0.0.1:1/0"


@pytest.mark.parametrize("fails", [False, True])
async def test_cancellation_that_the_client_loses_still_cancels(fails: bool) -> None:
    entered = asyncio.Event()

    async def deaf(_: Redis) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if fails:
                raise ResponseError("an error") from None
            return "an answer"
        raise AssertionError("unreachable")

    calling = asyncio.create_task(RedisServer(NOWHERE).call(deaf))
    await entered.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_deadline_ends_a_call_and_names_the_server_without_its_password() -> None:
    async def slow(_: Redis) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RegistryUnavailable, match=r"redis://127.0.0.1:1/0 can't be used") as error:
        await RedisServer(NOWHERE, deadline_s=0.01).call(slow)
    assert "secret" not in str(error.value)


async def test_script_that_the_server_has_forgotten_is_sent_again(valkey_url: str) -> None:
    server, script = RedisServer(valkey_url), Script("return tonumber(ARGV[1]) + 1")
    try:
        assert await server.run(script, [], [1]) == 2
        await server.call(lambda client: client.script_flush())
        assert await server.run(script, [], [2]) == 3
    finally:
        await server.close()


async def test_script_that_fails_is_told_as_unavailable(valkey_url: str) -> None:
    server = RedisServer(valkey_url)
    try:
        with pytest.raises(RegistryUnavailable) as error:
            await server.run(Script("return redis.call('NO SUCH COMMAND')"), [], [])
        assert isinstance(error.value.__cause__, ResponseError)
    finally:
        await server.close()
