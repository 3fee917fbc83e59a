"""KV frames: runs of blocks cut into messages, and messages checked on their way back to blocks.

Called by both ends of a transfer. Owns the sizes of frames and the checksums; knows nothing of stages, credit or memory: those
are the business of `transfer.outbound` and `transfer.inbound`.

A block is charged `KvLayout.block_bytes` everywhere: in credit, budgets and frame sizes. In dense.f16 its payload is that long; a
format whose payload only stands for its bytes declares them. The bound on a message holds for what really travels.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from pdd.engine.base import Payload
from pdd.identity import RequestId
from pdd.kv.layout import DENSE_F16
from pdd.v1 import kv_pb2

TARGET_FRAME_BYTES = 1 << 20
MAX_FRAME_BYTES = 4 << 20


class MalformedFrame(ValueError):
    """A frame that can't be what its sender meant; the text says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class WireFrame:
    """A frame as it travels. The payload stays out of the protobuf message, which would copy it."""

    head: kv_pb2.Frame  # all but the payload
    payload: tuple[Payload, ...] = field(repr=False)  # in pieces: the blocks to be sent, or what came as a whole

    @classmethod
    def from_proto(cls, message: kv_pb2.Frame) -> WireFrame:
        return cls(message, (memoryview(message.payload),))


@dataclass(frozen=True, slots=True)
class KvFrame:
    """A frame whose shape is right. Its content is proven by `bad_block`."""

    request: RequestId
    first_block: int
    checksums: tuple[int, ...]
    payloads: tuple[memoryview, ...] = field(repr=False)  # views of one buffer, equally long
    declared_bytes: int

    @property
    def end_block(self) -> int:
        return self.first_block + len(self.payloads)

    def bad_block(self) -> int | None:
        """The first block whose payload does not have its checksum; None where all have."""
        for offset, (payload, checksum) in enumerate(zip(self.payloads, self.checksums, strict=True)):
            if block_checksum(payload) != checksum:
                return self.first_block + offset
        return None


def block_checksum(payload: Payload) -> int:
    """xxh3-64 of a block's payload."""
    return xxhash.xxh3_64_intdigest(payload)


def commit_digest(checksums: Sequence[int]) -> int:
    """xxh3-64 over the little-endian checksums, in order; of the empty string where there are none."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(checksums)}Q", *checksums))


def blocks_per_frame(block_bytes: int) -> int:
    """How many blocks a sender puts into a frame: as many as fit the target, at least one."""
    return max(1, TARGET_FRAME_BYTES // block_bytes)


def largest_frame(block_bytes: int) -> int:
    """Declared bytes of the largest frame that a receiver takes."""
    return max(1, MAX_FRAME_BYTES // block_bytes) * block_bytes


def build_frame(request: RequestId, first_block: int, payloads: Sequence[Payload], block_bytes: int) -> WireFrame:
    """A frame for a run of at least one block. Raises ValueError where the blocks don't make a legal one."""
    sizes = [len(payload) for payload in payloads]
    if len(set(sizes)) != 1 or not 0 < sum(sizes) <= MAX_FRAME_BYTES:
        raise ValueError(
            f"blocks from {first_block} on have {sizes} bytes; a frame takes equally long ones, at least one, and "
            f"{MAX_FRAME_BYTES} bytes in all at most: use smaller blocks"
        )
    head = kv_pb2.Frame(
        request=request.to_proto(),
        first_block=first_block,
        checksums=map(block_checksum, payloads),
        declared_bytes=len(payloads) * block_bytes,
    )
    return WireFrame(head, tuple(payloads))


def parse_frame(frame: WireFrame, wire_format: str, block_bytes: int) -> KvFrame:
    """Check a received frame's shape against the transfer's format. Raises MalformedFrame."""
    head, (payload,) = frame.head, frame.payload
    count, whole = len(head.checksums), memoryview(payload)
    if count == 0:
        raise MalformedFrame("a frame of no blocks: at least one checksum and its block are expected")
    if len(whole) > MAX_FRAME_BYTES:
        raise MalformedFrame(f"{len(whole)} bytes of payload; a frame takes {MAX_FRAME_BYTES} at most")
    size, rest = divmod(len(whole), count)
    if size == 0 or rest != 0:
        raise MalformedFrame(f"{len(whole)} bytes of payload do not make {count} equally long blocks")
    if head.declared_bytes != count * block_bytes:
        raise MalformedFrame(f"declares {head.declared_bytes} bytes; {count} blocks of {block_bytes} bytes are expected")
    if wire_format == DENSE_F16 and size != block_bytes:
        raise MalformedFrame(f"blocks of {size} bytes; {wire_format} has blocks of {block_bytes} bytes")
    return KvFrame(
        request=RequestId.from_proto(head.request),
        first_block=head.first_block,
        checksums=tuple(head.checksums),
        payloads=tuple(whole[start : start + size] for start in range(0, len(whole), size)),
        declared_bytes=head.declared_bytes,
    )
