"""How hashes, states and events of the prefix catalog are written in its server.

Called by the Redis backend alone. Hashes are 8 bytes each, packed into one string, which scripts in the server cut up; an event
is a msgpack array whose members are strings of bytes, because numbers in such a script have 53 bits. They are in msgpack's old
string type: scripts do not know the one for bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

import msgpack  # type: ignore[import-untyped]

from pdd.catalog.codec import decode_incarnation, encode_incarnation
from pdd.catalog.prefixes import HASH_BYTES, CacheBatch, CacheEvent, CacheState
from pdd.identity import Instance

VERSION = 1

_STATE = struct.Struct("<QQQ")
_FIELDS = 6


class MalformedEvent(ValueError):
    """An entry of the stream is not an event of this version; the text says what is wrong with it."""


def pack_hashes(hashes: Collection[int]) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


def unpack_hashes(packed: bytes) -> tuple[int, ...]:
    """Raises struct.error where it is no whole number of hashes."""
    return struct.unpack(f"<{len(packed) // HASH_BYTES}Q", packed)


def pack_state(state: CacheState) -> bytes:
    return _STATE.pack(state.seq, state.count, state.digest)


def unpack_state(packed: bytes) -> CacheState:
    return CacheState(*_STATE.unpack(packed))


def encode_event(event: CacheEvent) -> bytes:
    """[version, id, incarnation, state after it, added, removed]; without the last two, everything was published anew."""
    change = event.change
    state = change.state if isinstance(change, CacheBatch) else change
    body: list[object] = [VERSION, event.instance.id, encode_incarnation(event.instance), pack_state(state)]
    if isinstance(change, CacheBatch):
        body += [pack_hashes(change.added), pack_hashes(change.removed)]
    packed: bytes = msgpack.packb(body, use_bin_type=False)
    return packed


def decode_event(packed: bytes) -> CacheEvent:
    """The inverse of `encode_event`. Raises MalformedEvent."""
    try:
        body: Any = msgpack.unpackb(packed, raw=True)
        if not isinstance(body, list) or len(body) not in (_FIELDS - 2, _FIELDS) or body[0] != VERSION:
            raise MalformedEvent(f"not an event of version {VERSION}")
        _, id, incarnation, packed_state, *changes = body
        if not all(isinstance(field, bytes) for field in (id, incarnation, packed_state, *changes)):
            raise MalformedEvent("fields of other kinds than an event's")
        instance, state = Instance(id.decode(), decode_incarnation(incarnation)), unpack_state(packed_state)
        if not changes:
            return CacheEvent(instance, state)
        added, removed = map(unpack_hashes, changes)
    except (struct.error, msgpack.UnpackException, ValueError) as error:
        raise MalformedEvent(f"not an event: {error}") from error
    return CacheEvent(instance, CacheBatch(state, added, removed))
