"""The registry in a Redis or Valkey server, shared by both sites.

Used by every service (through `heartbeat`) and by the gateway. Owns one client and the keys under `pdd:`; keeps no copy of what
it read. Each instance has one key whose time to live is its heartbeat; an index names those keys, so that listing takes one
round trip.

Joining must be safe against another instance joining at the same moment, and what is compatible is decided here, not in the
server. So a join reads the list with its epoch and writes only if the epoch, which every join moves, is still that one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdd.catalog.base import Registration, Registry, RegistryUnavailable, refuse_incompatible
from pdd.catalog.codec import MalformedRegistration, decode, encode, encode_incarnation
from pdd.identity import Instance
from pdd.rpc.errors import StartupError
from pdd.telemetry import get_logger

SOCKET_TIMEOUT_S = 1.5
CALL_TIMEOUT_S = 4.0  # of one round trip with its reconnections
JOIN_ATTEMPTS = 64

_INDEX = "pdd:instances"  # set of instance ids, some of which may have run out
_EPOCH = "pdd:instances:epoch"  # counts joins
_PREFIX = "pdd:instance:"

# KEYS index, epoch; ARGV prefix → {epoch, value…}. Ids that ran out leave the index in the same step: no join can come between.
_LIST = """
local found = {redis.call('GET', KEYS[2]) or '0'}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local value = redis.call('GET', ARGV[1] .. id)
  if value then found[#found + 1] = value else redis.call('SREM', KEYS[1], id) end
end
return found
"""

# KEYS instance; ARGV value, ttl in ms, incarnation → 1 where the instance was there and is renewed, else 0.
_RENEW = """
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

# KEYS instance, index, epoch; ARGV value, ttl in ms, expected epoch, id → 1 where the epoch was the expected one, else 0.
_JOIN = """
if (redis.call('GET', KEYS[3]) or '0') ~= ARGV[3] then return 0 end
redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[4])
return 1
"""

# KEYS instance, index; ARGV incarnation, id.
_WITHDRAW = """
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
"""

log = get_logger(__name__)


class RedisRegistry(Registry):
    """`url` is redis://[[user]:password@]host:port[/db], or rediss://. Connects at the first call, and again after a loss."""

    def __init__(self, url: str) -> None:
        self._name = _without_password(url)
        self._client = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            # One: a kept connection may have died with a server that is back by now.
            retry=Retry(NoBackoff(), 1),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        value, ttl_ms = encode(registration), max(1, round(ttl_s * 1000))
        id = registration.instance.id
        if await self._call(_RENEW, [_PREFIX + id], [value, ttl_ms, encode_incarnation(registration.instance)]):
            return
        for _ in range(JOIN_ATTEMPTS):
            epoch, present = await self._read()
            refuse_incompatible(registration, present)
            if await self._call(_JOIN, [_PREFIX + id, _INDEX, _EPOCH], [value, ttl_ms, epoch, id]):
                return
        raise RegistryUnavailable(f"registry at {self._name}: {id} lost the race to join {JOIN_ATTEMPTS} times; try again")

    async def withdraw(self, instance: Instance) -> None:
        await self._call(_WITHDRAW, [_PREFIX + instance.id, _INDEX], [encode_incarnation(instance), instance.id])

    async def instances(self) -> tuple[Registration, ...]:
        _, present = await self._read()
        return tuple(sorted(present, key=lambda entry: (entry.role.value, entry.instance.id)))

    async def _read(self) -> tuple[bytes, list[Registration]]:
        epoch, *values = await self._call(_LIST, [_INDEX, _EPOCH], [_PREFIX])
        present: list[Registration] = []
        for value in values:
            try:
                present.append(decode(value))
            except MalformedRegistration as error:
                # Another version's, or no one's: it must not hide everyone else.
                log.warning("registry holds an entry that can't be read", registry=self._name, error=str(error))
        return epoch, present

    async def _call(self, script: str, keys: list[str], arguments: list[str | bytes | int]) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise RegistryUnavailable(f"registry at {self._name} can't be used: {reason}") from error


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or 6379
    except ValueError as error:
        raise StartupError(f"registry URL: {error}; give redis://host:port/0") from error
    if parts.scheme not in ("redis", "rediss") or not host:
        raise StartupError(f"registry URL with scheme {parts.scheme!r} and host {host!r}: give redis://host:port/0")
    return f"{parts.scheme}://{host}:{port}{parts.path}"
