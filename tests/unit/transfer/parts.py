"""Prompts, blocks and messages of transfers, for the tests of both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pdd.engine.base import Payload
from pdd.identity import Instance, RequestId
from pdd.kv.hashing import chain_hashes
from pdd.kv.layout import DENSE_F16, KvLayout
from pdd.kv.wire import block_checksum, build_frame, commit_digest
from pdd.transfer.base import Received, Refusal
from pdd.transfer.messages import encode_push
from pdd.transfer.outbound import OfferedKv
from pdd.v1 import kv_pb2

BLOCK_TOKENS = 4
FIRST_TOKEN = 42
TAIL = 3
REQUEST = RequestId(0xA, 1, 1)
OLD_ATTEMPT = replace(REQUEST, attempt=0)
FOREIGN = RequestId(0xA, 2, 1)
SALT = "tenant"
PREFILL = Instance("prefill-0", 3)


def layout(block_bytes: int = 16, wire_format: str = DENSE_F16) -> KvLayout:
    return KvLayout("model", "tokenizer", 1, 1, 1, BLOCK_TOKENS, (wire_format,), block_bytes, "test")


def prompt(blocks: int) -> tuple[int, ...]:
    """Token ids of a prompt with that many full blocks and a tail."""
    return tuple(range(100, 100 + blocks * BLOCK_TOKENS + TAIL))


def payloads(blocks: int, block_bytes: int = 16) -> list[bytes]:
    return [index.to_bytes(8, "little") * (block_bytes // 8) for index in range(blocks)]


def offered(blocks: int, block_bytes: int = 16, request: RequestId = REQUEST) -> OfferedKv:
    ids = prompt(blocks)
    return OfferedKv(request, PREFILL, layout(block_bytes), len(ids), chain_hashes(ids, BLOCK_TOKENS, SALT))


def frame(
    blocks: Sequence[Payload], first_block: int = 0, request: RequestId = REQUEST, block_bytes: int = 16
) -> kv_pb2.PushRequest:
    return kv_pb2.PushRequest.FromString(encode_push(build_frame(request, first_block, blocks, block_bytes)))


def damaged(message: kv_pb2.PushRequest) -> kv_pb2.PushRequest:
    """The frame with its last byte flipped on the way."""
    payload = message.frame.payload
    message.frame.payload = payload[:-1] + bytes([payload[-1] ^ 1])
    return message


def commit(blocks: Sequence[Payload], request: RequestId = REQUEST, count: int | None = None) -> kv_pb2.PushRequest:
    message = kv_pb2.Commit(
        request=request.to_proto(),
        block_count=len(blocks) if count is None else count,
        digest=commit_digest([block_checksum(payload) for payload in blocks]),
        first_token=FIRST_TOKEN,
    )
    return kv_pb2.PushRequest(commit=message)


def cancel(request: RequestId = REQUEST) -> kv_pb2.PushRequest:
    return kv_pb2.PushRequest(cancel=kv_pb2.Cancel(request=request.to_proto(), reason="test"))


@dataclass(eq=False)
class Heard:
    """A listener that remembers what it was told."""

    wanted_blocks: list[tuple[int, int]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    failures: list[tuple[Refusal | None, str]] = field(default_factory=list)

    def wanted(self, missing_blocks: int, missing_bytes: int) -> None:
        self.wanted_blocks.append((missing_blocks, missing_bytes))

    def ready(self, received: Received) -> None:
        self.received.append(received)

    def failed(self, reason: Refusal | None, message: str) -> None:
        self.failures.append((reason, message))

    @property
    def reasons(self) -> list[Refusal | None]:
        return [reason for reason, _ in self.failures]
