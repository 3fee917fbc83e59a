"""The registry in a Redis or Valkey server, shared by both sites.

Used by every service (through `heartbeat`) and by the gateway. Owns one client and the keys under `pdd:`; keeps no copy of what
it read. An index names the instances, so that listing takes one round trip. Its keys:

    pdd:instance:ID         string   an instance's registration (`codec`); lives for its heartbeat's TTL, 3 s
    pdd:instances           set      ids, some of which may have run out; for ever
    pdd:instances:epoch     string   counts joins; for ever

What instances cache is beside them, in the keys of `redis_prefixes`.

Joining must be safe against another instance joining at the same moment, and what is compatible is decided here, not in the
server. So a join reads the list with its epoch and writes only if the epoch, which every join moves, is still that one.
"""

from __future__ import annotations

from typing import Self

from pdd.catalog.base import Registration, Registry, RegistryUnavailable, refuse_incompatible
from pdd.catalog.codec import MalformedRegistration, decode, encode, encode_incarnation
from pdd.catalog.redis_server import RedisServer, Script
from pdd.identity import Instance
from pdd.telemetry import get_logger

JOIN_ATTEMPTS = 64

_INDEX = "pdd:instances"
_EPOCH = "pdd:instances:epoch"
_PREFIX = "pdd:instance:"

# KEYS index, epoch; ARGV prefix → {epoch, value…}. Ids that ran out leave the index in the same step: no join can come between.
_LIST = Script("""
local found = {redis.call('GET', KEYS[2]) or '0'}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local value = redis.call('GET', ARGV[1] .. id)
  if value then found[#found + 1] = value else redis.call('SREM', KEYS[1], id) end
end
return found
""")

# KEYS instance; ARGV value, ttl in ms, incarnation → 1 where the instance was there and is renewed, else 0.
_RENEW = Script("""
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

# KEYS instance, index, epoch; ARGV value, ttl in ms, expected epoch, id → 1 where the epoch was the expected one, else 0.
_JOIN = Script("""
if (redis.call('GET', KEYS[3]) or '0') ~= ARGV[3] then return 0 end
redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[4])
return 1
""")

# KEYS instance, index; ARGV incarnation, id.
_WITHDRAW = Script("""
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
""")

log = get_logger(__name__)


def registration_key(id: str) -> str:
    """Where an instance's registration is; the first 8 bytes of the value are its incarnation."""
    return _PREFIX + id


class RedisRegistry(Registry):
    """`url` is redis://[[user]:password@]host:port[/db], or rediss://. Connects at the first call, and again after a loss."""

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        value, ttl_ms = encode(registration), max(1, round(ttl_s * 1000))
        id = registration.instance.id
        if await self._server.run(_RENEW, [registration_key(id)], [value, ttl_ms, encode_incarnation(registration.instance)]):
            return
        for _ in range(JOIN_ATTEMPTS):
            epoch, present = await self._read()
            refuse_incompatible(registration, present)
            if await self._server.run(_JOIN, [registration_key(id), _INDEX, _EPOCH], [value, ttl_ms, epoch, id]):
                return
        raise RegistryUnavailable(f"registry at {self._server.name}: {id} lost the race to join {JOIN_ATTEMPTS} times; try again")

    async def withdraw(self, instance: Instance) -> None:
        await self._server.run(_WITHDRAW, [registration_key(instance.id), _INDEX], [encode_incarnation(instance), instance.id])

    async def instances(self) -> tuple[Registration, ...]:
        _, present = await self._read()
        return tuple(sorted(present, key=lambda entry: (entry.role.value, entry.instance.id)))

    async def _read(self) -> tuple[bytes, list[Registration]]:
        epoch, *values = await self._server.run(_LIST, [_INDEX, _EPOCH], [_PREFIX])
        present: list[Registration] = []
        for value in values:
            try:
                present.append(decode(value))
            except MalformedRegistration as error:
                # Another version's, or no one's: it must not hide everyone else.
                log.warning("registry holds an entry that can't be read", registry=self._server.name, error=str(error))
        return epoch, present
