"""What a transfer tells its owner, on both sides. Data and interfaces only.

Receiving side: the decoder admits a request with a `TransferListener`. The listener hears exactly one of `ready` and `failed`,
and after `ready` still `failed` if, before the payloads are released, the lease runs out (it starts anew with `ready`) or a newer
attempt is admitted. Once the admission is cancelled or released it hears nothing. Calls come on the event loop, never from within
`admit` or `cancel`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from pdd.engine.base import Payload
from pdd.identity import RequestId
from pdd.v1 import kv_pb2


class Refusal(enum.Enum):
    """As RefusalReason in kv.proto, by name. BACKLOG is prefill's own."""

    UNKNOWN_REQUEST = kv_pb2.REFUSAL_REASON_UNKNOWN_REQUEST
    STALE_ATTEMPT = kv_pb2.REFUSAL_REASON_STALE_ATTEMPT
    CANCELLED_ATTEMPT = kv_pb2.REFUSAL_REASON_CANCELLED_ATTEMPT
    INCOMPATIBLE_LAYOUT = kv_pb2.REFUSAL_REASON_INCOMPATIBLE_LAYOUT
    HASH_MISMATCH = kv_pb2.REFUSAL_REASON_HASH_MISMATCH
    NO_MEMORY = kv_pb2.REFUSAL_REASON_NO_MEMORY
    FOREIGN_FRAME = kv_pb2.REFUSAL_REASON_FOREIGN_FRAME
    DUPLICATE_BLOCK = kv_pb2.REFUSAL_REASON_DUPLICATE_BLOCK
    MISSING_BLOCK = kv_pb2.REFUSAL_REASON_MISSING_BLOCK
    MALFORMED_FRAME = kv_pb2.REFUSAL_REASON_MALFORMED_FRAME
    CHECKSUM_MISMATCH = kv_pb2.REFUSAL_REASON_CHECKSUM_MISMATCH
    COUNT_MISMATCH = kv_pb2.REFUSAL_REASON_COUNT_MISMATCH
    DIGEST_MISMATCH = kv_pb2.REFUSAL_REASON_DIGEST_MISMATCH
    CREDIT_EXCEEDED = kv_pb2.REFUSAL_REASON_CREDIT_EXCEEDED
    OUT_OF_TURN = kv_pb2.REFUSAL_REASON_OUT_OF_TURN
    LEASE_EXPIRED = kv_pb2.REFUSAL_REASON_LEASE_EXPIRED
    BACKLOG = kv_pb2.REFUSAL_REASON_BACKLOG


class TransferRefused(Exception):
    """The receiver said no; `reason` is its word, the text says what was expected and what came."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransferLost(Exception):
    """The peer or the link went away without an answer."""


@dataclass(frozen=True, slots=True)
class Received:
    """A prompt's full blocks, cached and transferred, proven whole; held by the store until `release` on the receiver that gave
    it."""

    request: RequestId
    payloads: tuple[Payload, ...] = field(repr=False)
    first_token: int  # output index 0
    final: bool  # index 0 was the last token: do not decode


class TransferListener(Protocol):
    def wanted(self, missing_blocks: int, missing_bytes: int) -> None:
        """An offer was accepted; what is not missing is cached, and pinned."""

    def ready(self, received: Received) -> None:
        """Count, checksums, digest and identity are right."""

    def failed(self, reason: Refusal | None, message: str) -> None:
        """The transfer was refused, or (None) its sender was lost. Nothing is reserved any more."""
