"""What a handle's state machine asks its session to do. Data only; order within a list is the order of execution."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.engine.base import Payload, SeqId
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.v1 import decode_pb2


@dataclass(frozen=True, slots=True)
class AdmitKv:
    """Let the receiver take the request's KV, and report on it for the handle."""

    handle: int
    spec: RequestSpec


@dataclass(frozen=True, slots=True)
class CancelKv:
    """The KV is not wanted any more; what arrived of it is dropped, what still comes is refused."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class ReleaseKv:
    """The whole KV's payloads may be reused."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class OpenSeq:
    seq: SeqId
    spec: RequestSpec
    payloads: tuple[Payload, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExtendSeq:
    seq: SeqId
    first_index: int
    ids: tuple[int, ...]
    then_decode: bool
    score: bool = False


@dataclass(frozen=True, slots=True)
class ThrottleSeq:
    seq: SeqId
    min_interval_s: float  # 0 lifts it


@dataclass(frozen=True, slots=True)
class StopSeq:
    seq: SeqId


@dataclass(frozen=True, slots=True)
class AbortSeq:
    seq: SeqId


@dataclass(frozen=True, slots=True)
class KeepOutput:
    """Blocks of the request's prompt and output, from its prompt's end on, for the prefix cache."""

    request: RequestId
    salt: str
    ids: tuple[int, ...]  # from the prompt's first to the last block's end
    first_block: int
    payloads: tuple[Payload, ...] = field(repr=False)


EngineAction = OpenSeq | ExtendSeq | ThrottleSeq | StopSeq | AbortSeq
Action = AdmitKv | CancelKv | ReleaseKv | KeepOutput | EngineAction | decode_pb2.OpeningEvent | decode_pb2.ClosingEvent
