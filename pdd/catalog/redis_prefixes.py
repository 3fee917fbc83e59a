"""The prefix catalog in the registry's Redis or Valkey server.

Used by instances (through `publisher`) and by the gateway (through `follower`). Owns one client; keeps no copy of what it read.
Its keys, where INC is an incarnation in 16 hexadecimal digits:

    pdd:cached:ID:INC            string   24 bytes: seq, count and digest of what is held (`packing`)
    pdd:cached:ID:INC:blocks     set      the hashes of the blocks, 8 bytes each
    pdd:cached:ID:INC:SEQ        set      parts of the snapshot with that seq, until the last one makes them :blocks
    pdd:cached:events            stream   what changed, of all instances; `event` is msgpack (`packing`), `prev` the entry before

The keys of an instance live for the TTL that each publish and renewal gives them, so those of a dead one go by themselves. The
stream has no TTL; it keeps about the last `max_events`. A key of the registry, pdd:instance:ID, is read: an instance counts only
while it is registered under the incarnation that is asked for.

Every change is one script, so that no reader sees a part of it. It is applied only where the state is the one it builds on. Each
entry of the stream names the one before it, so that a reader notices when some are missing, and also when the server is another
than it was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pdd.catalog.codec import encode_incarnation
from pdd.catalog.packing import (
    MalformedEvent,
    decode_event,
    encode_event,
    pack_hashes,
    pack_state,
    unpack_hashes,
    unpack_state,
)
from pdd.catalog.prefixes import CacheBatch, CacheEvent, CacheEvents, CacheSnapshot, CacheState, PrefixCatalog, StreamLost
from pdd.catalog.redis import registration_key
from pdd.catalog.redis_server import CALL_TIMEOUT_S, SOCKET_TIMEOUT_S, RedisServer, Script, Word
from pdd.identity import Instance
from pdd.telemetry import get_logger

MAX_EVENTS = 4096  # of which none is larger than a publisher's batch
PART_HASHES = 8192  # of a snapshot, in one call
MAX_WAIT_S = SOCKET_TIMEOUT_S / 2
READ_EVENTS = 512  # in one reading

_EVENTS = "pdd:cached:events"
_NOTHING = "0-0"

# Adds or removes the members that are packed in one string, a few at once: a call takes less than 8,000 arguments.
_CHANGE = """
local function change(command, key, packed)
  for from = 1, #packed, 8000 do
    local members = {}
    for at = from, math.min(from + 7999, #packed), 8 do members[#members + 1] = string.sub(packed, at, at + 7) end
    redis.call(command, key, unpack(members))
  end
end
"""

# Adds an entry to the stream that names the one before it.
_TELL = """
local function tell(stream, event, max)
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
  redis.call('XADD', stream, 'MAXLEN', '~', max, '*', 'prev', last[1] and last[1][1] or '0-0', 'event', event)
end
"""

# KEYS state, blocks, events; ARGV state before, state after, count after, ttl in ms, event, max events → 1, or 0 where it does
# not fit. It is in already where the answer to the first attempt was lost.
_PUBLISH = Script(f"""{_CHANGE}{_TELL}
local held = redis.call('GET', KEYS[1])
if held == ARGV[2] then return 1 end
if held ~= ARGV[1] then return 0 end
local event = cmsgpack.unpack(ARGV[5])
change('SADD', KEYS[2], event[5])
change('SREM', KEYS[2], event[6])
if redis.call('SCARD', KEYS[2]) ~= tonumber(ARGV[3]) then redis.call('DEL', KEYS[1]) return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
tell(KEYS[3], ARGV[5], ARGV[6])
return 1
""")

# KEYS parts; ARGV hashes, ttl in ms.
_PART = Script(f"""{_CHANGE}
change('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
""")

# KEYS state, blocks, events, parts; ARGV state, count, ttl in ms, event, max events → 1, or 0 where parts are missing.
_COMMIT = Script(f"""{_TELL}
if redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end
if redis.call('SCARD', KEYS[4]) ~= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[2] ~= '0' then redis.call('RENAME', KEYS[4], KEYS[2]) redis.call('PEXPIRE', KEYS[2], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
tell(KEYS[3], ARGV[4], ARGV[5])
return 1
""")

# KEYS state, blocks; ARGV state, count, ttl in ms → 1, or 0 where something else is held.
_RENEW = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('SCARD', KEYS[2]) ~= tonumber(ARGV[2]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
""")

# KEYS state; ARGV state.
_DISTRUST = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1")

# KEYS registration and blocks of each instance; ARGV hashes, then the incarnation of each → how many it holds, each.
_LONGEST = Script("""
local found, total = {}, #ARGV[1] / 8
for at = 1, #KEYS / 2 do
  local low, high = 0, 0
  if redis.call('GETRANGE', KEYS[2 * at - 1], 0, 7) == ARGV[at + 1] then high = total end
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    local hash = string.sub(ARGV[1], 8 * middle - 7, 8 * middle)
    if redis.call('SISMEMBER', KEYS[2 * at], hash) == 1 then low = middle else high = middle - 1 end
  end
  found[at] = low
end
return found
""")

# KEYS state, blocks → {state, hashes} or nothing.
_SNAPSHOT = Script("""
local state = redis.call('GET', KEYS[1])
return state and {state, table.concat(redis.call('SMEMBERS', KEYS[2]))}
""")

log = get_logger(__name__)


class RedisPrefixCatalog(PrefixCatalog):
    """`url` as for RedisRegistry, and the same server; `deadline_s` is for one round trip with its reconnections."""

    def __init__(self, url: str, *, max_events: int = MAX_EVENTS, deadline_s: float = CALL_TIMEOUT_S) -> None:
        self._server = RedisServer(url, deadline_s)
        self._max_events = max_events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def publish(self, instance: Instance, batch: CacheBatch, ttl_s: float) -> bool:
        state, event = batch.state, encode_event(CacheEvent(instance, batch))
        arguments: list[Word] = [pack_state(batch.before), pack_state(state), state.count, _ms(ttl_s), event, self._max_events]
        return bool(await self._server.run(_PUBLISH, [*_keys(instance), _EVENTS], arguments))

    async def publish_all(self, instance: Instance, snapshot: CacheSnapshot, ttl_s: float) -> bool:
        hashes, state = list(snapshot.hashes), snapshot.state
        parts = f"{_key(instance)}:{state.seq}"  # a part of an earlier attempt may still be on its way
        for start in range(0, len(hashes), PART_HASHES):
            part = pack_hashes(hashes[start : start + PART_HASHES])
            await self._server.run(_PART, [parts], [part, _ms(ttl_s)])
        arguments: list[Word] = [
            pack_state(state),
            state.count,
            _ms(ttl_s),
            encode_event(CacheEvent(instance, state)),
            self._max_events,
        ]
        return bool(await self._server.run(_COMMIT, [*_keys(instance), _EVENTS, parts], arguments))

    async def renew(self, instance: Instance, state: CacheState, ttl_s: float) -> bool:
        return bool(await self._server.run(_RENEW, _keys(instance), [pack_state(state), state.count, _ms(ttl_s)]))

    async def withdraw(self, instance: Instance) -> None:
        await self._server.call(lambda client: client.delete(*_keys(instance)))

    async def distrust(self, instance: Instance, state: CacheState) -> None:
        await self._server.run(_DISTRUST, [_key(instance)], [pack_state(state)])

    async def longest(self, hashes: Sequence[int], instances: Sequence[Instance]) -> Mapping[Instance, int]:
        keys = [key for instance in instances for key in (registration_key(instance.id), _keys(instance)[1])]
        arguments: list[Word] = [pack_hashes(hashes), *map(encode_incarnation, instances)]
        return dict(zip(instances, await self._server.run(_LONGEST, keys, arguments), strict=True))

    async def snapshot(self, instance: Instance) -> CacheSnapshot | None:
        found = await self._server.run(_SNAPSHOT, _keys(instance), [])
        if not found:
            return None
        try:
            return CacheSnapshot(unpack_state(found[0]), frozenset(unpack_hashes(found[1])))
        except struct.error as error:
            log.warning("catalog holds a cache that can't be read", instance=str(instance), error=str(error))
            return None

    async def position(self) -> str:
        last: list[tuple[bytes, Any]] = await self._server.call(lambda client: client.xrevrange(_EVENTS, count=1))
        return last[0][0].decode() if last else _NOTHING

    async def events(self, after: str, wait_s: float) -> CacheEvents:
        wait_ms = _ms(min(wait_s, MAX_WAIT_S))
        found = await self._server.call(lambda client: client.xread({_EVENTS: after}, READ_EVENTS, wait_ms))
        entries = found[0][1] if found else []
        if not entries:
            # A server that has begun anew may never come to give entries after that position.
            if _order(last := await self.position()) < _order(after):
                raise StreamLost(f"the catalog's events end at {last}, before {after}: its server has begun anew")
            return CacheEvents((), after, caught_up=True)
        events, position = self._read(entries, after)
        return CacheEvents(tuple(events), position, caught_up=len(entries) < READ_EVENTS)

    def _read(self, entries: list[tuple[bytes, dict[bytes, bytes]]], position: str) -> tuple[list[CacheEvent], str]:
        events: list[CacheEvent] = []
        for id, fields in entries:
            if (previous := fields.get(b"prev", b"").decode(errors="replace")) != position:
                raise StreamLost(f"the catalog's events from {position} to {previous or id.decode()} are gone")
            position = id.decode()
            try:
                events.append(decode_event(fields.get(b"event", b"")))
            except MalformedEvent as error:
                # Whose batch it was, is noticed by its next one.
                log.warning("catalog's stream holds an entry that can't be read", registry=self._server.name, error=str(error))
        return events, position


def _key(instance: Instance) -> str:
    return f"pdd:cached:{instance.id}:{instance.incarnation:016x}"


def _keys(instance: Instance) -> tuple[str, str]:
    key = _key(instance)
    return key, f"{key}:blocks"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _order(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split("-")))
