"""How a registration is written in the registry's server.

Called by the Redis backend alone. A value is the instance's incarnation, 8 bytes, most significant first, so that a script in the
server can compare it without reading further, and then a msgpack map.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError

from pdd.catalog.base import Registration, Role
from pdd.catalog.prefixes import CacheState
from pdd.identity import Instance
from pdd.kv.layout import KvLayout
from pdd.v1 import kv_pb2

VERSION = 1

_INCARNATION = struct.Struct(">Q")

FieldT = TypeVar("FieldT")


class MalformedRegistration(ValueError):
    """A value in the registry is not a registration of this version; the text names what is wrong with it."""


def encode_incarnation(instance: Instance) -> bytes:
    """The first 8 bytes of every value of this instance."""
    return _INCARNATION.pack(instance.incarnation)


def decode_incarnation(packed: bytes) -> int:
    """Raises struct.error where it is not 8 bytes."""
    (incarnation,) = _INCARNATION.unpack(packed)
    return int(incarnation)


def encode(registration: Registration) -> bytes:
    body = {
        "version": VERSION,
        "id": registration.instance.id,
        "role": registration.role.value,
        "site": registration.site,
        "address": registration.address,
        "layout": registration.layout.to_proto().SerializeToString(deterministic=True),
        "context_tokens": registration.context_tokens,
        "slots": registration.slots,
        "load": registration.load,
        "cached": None if registration.cached is None else dataclasses.astuple(registration.cached),
    }
    packed: bytes = msgpack.packb(body)
    return encode_incarnation(registration.instance) + packed


def decode(value: bytes) -> Registration:
    """The inverse of `encode`. Raises MalformedRegistration."""
    try:
        incarnation = decode_incarnation(value[: _INCARNATION.size])
        body = msgpack.unpackb(value[_INCARNATION.size :])
    except (struct.error, ValueError, msgpack.UnpackException) as error:
        raise MalformedRegistration(f"not a registration: {error}") from error
    if not isinstance(body, dict) or body.get("version") != VERSION:
        raise MalformedRegistration(f"not a registration of version {VERSION}")
    try:
        role = Role(_field(body, "role", str))
        layout = KvLayout.from_proto(kv_pb2.KvLayout.FromString(_field(body, "layout", bytes)))
    except (ValueError, DecodeError) as error:
        raise MalformedRegistration(str(error)) from error
    return Registration(
        instance=Instance(_field(body, "id", str), incarnation),
        role=role,
        site=_field(body, "site", str),
        address=_field(body, "address", str),
        layout=layout,
        context_tokens=_field(body, "context_tokens", int),
        slots=_field(body, "slots", int),
        load=_field(body, "load", float),
        cached=_cached(body),
    )


def _cached(body: dict[Any, Any]) -> CacheState | None:
    value = body.get("cached")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(number, int) for number in value):
        raise MalformedRegistration(f"field 'cached': {value!r} is not seq, count and digest")
    return CacheState(*value)


def _field(body: dict[Any, Any], name: str, kind: type[FieldT]) -> FieldT:
    value = body.get(name)
    if not isinstance(value, kind):
        raise MalformedRegistration(f"field {name!r}: {value!r} is no {kind.__name__}")
    return value
