from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import IncompatibleInstance
from pdd.catalog.embedded import embedded_valkey
from pdd.catalog.refusals import KEEP_S, Refusals, noting_refusal
from pdd.identity import Instance

MAIN = Instance("main-0", 7)
WHY = "main main-0 can't join beside prefill prefill-0: block_tokens: 32 against 16"


@pytest.fixture
async def redis_url() -> AsyncIterator[str]:
    async with embedded_valkey() as url:
        yield url


async def noted(redis_url: str) -> dict[str, str]:
    async with Refusals(redis_url) as refusals:
        return dict(await refusals.noted())


async def test_nobody_was_refused_at_first(redis_url: str) -> None:
    assert await noted(redis_url) == {}


async def test_a_refusal_at_the_start_is_noted_and_goes_on(redis_url: str) -> None:
    with pytest.raises(IncompatibleInstance, match="can't join"):
        async with noting_refusal(redis_url, MAIN):
            raise IncompatibleInstance(WHY)
    assert await noted(redis_url) == {"main-0": WHY}
    async with Redis.from_url(redis_url) as redis:
        assert 0 < await redis.ttl("pdd:refused:main-0") <= KEEP_S


async def test_a_later_refusal_which_comes_in_a_group_is_noted_too(redis_url: str) -> None:
    with pytest.raises(BaseExceptionGroup):
        async with noting_refusal(redis_url, MAIN):
            raise BaseExceptionGroup("tasks", [ValueError("other"), BaseExceptionGroup("heartbeat", [IncompatibleInstance(WHY)])])
    assert await noted(redis_url) == {"main-0": WHY}


async def test_other_errors_are_not_noted(redis_url: str) -> None:
    with pytest.raises(ExceptionGroup):
        async with noting_refusal(redis_url, MAIN):
            raise ExceptionGroup("tasks", [ValueError("other")])
    assert await noted(redis_url) == {}


async def test_a_refusal_goes_on_where_it_cannot_be_noted() -> None:
    with pytest.raises(IncompatibleInstance, match="can't join"):
        async with noting_refusal("redis://127.0.0.1:1/0", MAIN):
            raise IncompatibleInstance(WHY)
