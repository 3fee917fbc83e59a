"""What a message costs a link, and what it is called in the counts.

Called by both ends of a call for each message they send. A frame of KV costs the bytes that it stands for, since a simulated
engine's payloads are only digests of them; everything else costs its serialised size. KV comes as the generated message or as the
transfer's own form of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message

from pdd.kv.wire import WireFrame

FRAME_BYTES = 14  # around each message: 9 of an HTTP/2 frame, 5 of gRPC's prefix


@dataclass(frozen=True, slots=True)
class Charge:
    kind: str  # "DecodeFrame", or "PushRequest.frame" where the message is one of several
    serialised_bytes: int
    link_bytes: int  # what the link is charged, framing included


@dataclass(slots=True)
class Tally:
    """How many messages of a kind have crossed one way of a link."""

    messages: int = 0
    serialised_bytes: int = 0
    link_bytes: int = 0

    def add(self, charge: Charge) -> None:
        self.messages += 1
        self.serialised_bytes += charge.serialised_bytes
        self.link_bytes += charge.link_bytes


_Reading: TypeAlias = Callable[[Message, int], Charge]


def control(kind: str, size: int) -> Charge:
    """The charge of what is no message: headers, a status, the end of a stream."""
    return Charge(kind, 0, size + FRAME_BYTES)


class Meter:
    """Reads charges; remembers what it found out about each type of message."""

    def __init__(self) -> None:
        self._readings: dict[type[Message], _Reading] = {}

    def charge(self, message: object, data: bytes) -> Charge:
        """Of a message and its serialised form."""
        if isinstance(message, WireFrame):
            undeclared = len(data) - sum(map(len, message.payload))
            return Charge("PushRequest.frame", len(data), undeclared + message.head.declared_bytes + FRAME_BYTES)
        if not isinstance(message, Message):
            return Charge(type(message).__name__, len(data), len(data) + FRAME_BYTES)
        reading = self._readings.get(type(message))
        if reading is None:
            reading = self._readings[type(message)] = _reading(type(message))
        return reading(message, len(data))


def _reading(kind: type[Message]) -> _Reading:
    descriptor = kind.DESCRIPTOR
    if len(descriptor.oneofs) != 1:
        return lambda _message, size: Charge(descriptor.name, size, size + FRAME_BYTES)
    (choice,) = descriptor.oneofs
    choice_name = choice.name
    names = {field.name: f"{descriptor.name}.{field.name}" for field in choice.fields}
    declaring = {
        field.name
        for field in choice.fields
        if field.message_type is not None and {"declared_bytes", "payload"} <= set(field.message_type.fields_by_name)
    }

    def read(message: Message, size: int) -> Charge:
        field = message.WhichOneof(choice_name)
        if field is None:
            return Charge(descriptor.name, size, size + FRAME_BYTES)
        charged = size + FRAME_BYTES
        if field in declaring:
            part = getattr(message, field)
            charged += part.declared_bytes - len(part.payload)
        return Charge(names[field], size, charged)

    return read
