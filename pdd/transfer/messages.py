"""Push messages to bytes and back, with no copy of a block that gRPC does not force.

Used by `sender` and `receiver` in place of the generated stub and servicer. Their messages own their bytes: they copy a payload
when it is put in, serialised, parsed and taken out. Here blocks are joined once on their way out, and seen through a view of what
gRPC gave on their way in.

The bytes are the messages of kv.proto all the same, and either end understands a peer that uses the generated code. Protobuf
allows a message's fields in any order; a frame from here has its payload first, where it is found without parsing:

    key of PushRequest.frame │ length │ key of Frame.payload │ length │ block block … │ the frame's other fields
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc
import grpc.aio

from pdd.kv.wire import WireFrame
from pdd.v1 import kv_pb2

PushMessage: TypeAlias = kv_pb2.PushRequest | WireFrame
PushCall: TypeAlias = "grpc.aio.StreamStreamCall[PushMessage, kv_pb2.PushReply]"
PushContext: TypeAlias = "grpc.aio.ServicerContext[PushMessage, kv_pb2.PushReply]"

SERVICE = kv_pb2.DESCRIPTOR.services_by_name["KvTransfer"].full_name

# A field's key holds its number and its wire type, here 2: a length, then as many bytes. Numbers below 16 make it one byte.
_FRAME_KEY = kv_pb2.PushRequest.FRAME_FIELD_NUMBER << 3 | 2
_PAYLOAD_KEY = kv_pb2.Frame.PAYLOAD_FIELD_NUMBER << 3 | 2


def kind_of(message: PushMessage) -> str | None:
    """The field of PushRequest that is set."""
    return "frame" if isinstance(message, WireFrame) else message.WhichOneof("kind")


# ── bytes ──


def encode_push(message: PushMessage) -> bytes:
    if not isinstance(message, WireFrame):
        return message.SerializeToString()
    payload_bytes, head = sum(map(len, message.payload)), message.head.SerializeToString()
    payload_prefix = _prefix(_PAYLOAD_KEY, payload_bytes)
    prefix = _prefix(_FRAME_KEY, len(payload_prefix) + payload_bytes + len(head))
    return b"".join((prefix, payload_prefix, *message.payload, head))


def decode_push(data: bytes) -> PushMessage:
    """A frame of `encode_push` as a view of `data`, anything else as protobuf has it. Raises protobuf's DecodeError."""
    return _find_frame(data) or kv_pb2.PushRequest.FromString(data)


def _find_frame(data: bytes) -> WireFrame | None:
    """None for whatever is not laid out as here, legal or not."""
    frame_at, frame_end = _find_field(data, 0, _FRAME_KEY)
    if frame_end != len(data):
        return None
    payload_at, payload_end = _find_field(data, frame_at, _PAYLOAD_KEY)
    if not payload_at < payload_end <= frame_end:
        return None
    head = kv_pb2.Frame.FromString(data[payload_end:])
    # A second payload would replace the first.
    return None if head.payload else WireFrame(head, (memoryview(data)[payload_at:payload_end],))


def _prefix(key: int, length: int) -> bytes:
    encoded = bytearray((key,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def _find_field(data: bytes, at: int, key: int) -> tuple[int, int]:
    """Where the content of the field that starts at `at` begins and would end; (0, 0) where there is no such field."""
    if data[at : at + 1] != bytes((key,)):
        return 0, 0
    length = shift = 0
    for place, byte in enumerate(data[at + 1 : at + 6], at + 2):
        length |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return place, place + length
        shift += 7
    return 0, 0


# ── calls ──


def open_push(channel: grpc.aio.Channel) -> PushCall:
    """A call of Push, as the generated stub makes it; without a deadline, since only silence ends a transfer."""
    push = channel.stream_stream(f"/{SERVICE}/Push", encode_push, kv_pb2.PushReply.FromString)
    return push()


def add_push(server: grpc.aio.Server, serve: Callable[[object, PushContext], Awaitable[None]]) -> None:
    """Serve KvTransfer, as the generated function does."""
    handler = grpc.stream_stream_rpc_method_handler(serve, decode_push, kv_pb2.PushReply.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Push": handler}),))
    server.add_registered_method_handlers(SERVICE, {"Push": handler})
