"""Who was refused by the registry, and why: an instance that can't join ends at once, and only its log would tell.

Written by the services' shell, read by `pdd doctor`. Owns one client and these keys:

    pdd:refused:ID      string   the registry's words; lives for `KEEP_S` after the last refusal
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from redis.asyncio import Redis

from pdd.catalog.base import IncompatibleInstance, RegistryUnavailable
from pdd.catalog.redis_server import RedisServer
from pdd.identity import Instance
from pdd.telemetry import get_logger

KEEP_S = 300  # a container that is started again and again is so within a minute

_PREFIX = "pdd:refused:"

log = get_logger(__name__)


class Refusals:
    """`url` as for RedisRegistry, and the same server. Calls raise RegistryUnavailable."""

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def note(self, instance_id: str, why: str) -> None:
        await self._server.call(lambda client: client.set(_PREFIX + instance_id, why, ex=KEEP_S))

    async def noted(self) -> Mapping[str, str]:
        """Why, by instance id. One that has joined since then may still be among them."""

        async def read(client: Redis) -> dict[str, str]:
            keys = [key.decode() async for key in client.scan_iter(f"{_PREFIX}*", count=1000)]
            values: Sequence[Any] = await client.mget(keys) if keys else []
            found = zip(keys, values, strict=True)
            return {key.removeprefix(_PREFIX): value.decode() for key, value in sorted(found) if value is not None}

        found: dict[str, str] = await self._server.call(read)
        return found


@asynccontextmanager
async def noting_refusal(url: str, instance: Instance) -> AsyncIterator[None]:
    """Note it where the registry refuses the instance in the body, at the start or later; the error goes on."""
    try:
        yield
    except (IncompatibleInstance, BaseExceptionGroup) as error:
        if (refusal := _refusal(error)) is not None:
            await _note(url, instance, refusal)
        raise


async def _note(url: str, instance: Instance, refusal: IncompatibleInstance) -> None:
    async with Refusals(url) as refusals:
        try:
            await refusals.note(instance.id, str(refusal))
        except RegistryUnavailable as error:
            log.warning("the registry's refusal could not be noted there", instance=instance.id, error=str(error))


def _refusal(error: BaseException) -> IncompatibleInstance | None:
    if isinstance(error, IncompatibleInstance):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for one in inner if (found := _refusal(one)) is not None), None)
