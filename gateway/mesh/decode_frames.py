"""A decoder's frame, read as handoff events. Pure; called by `decode_link` for every frame."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.generation import MeshErrorCode
from gateway.handoff.events import (
    Closed,
    Extended,
    Failed,
    Finished,
    HandoffEvent,
    KvReady,
    NewTokens,
    Recalled,
    Stopped,
    Wanted,
)
from gateway.mode import DecoderLoad
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs
from pdd.sampling_proto import logprobs_from_proto
from pdd.v1 import decode_pb2, sampling_pb2

FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}

_ERROR_CODES = {
    decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED: MeshErrorCode.DEADLINE,
    decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED: MeshErrorCode.KV_REFUSED,
    decode_pb2.HANDLE_ERROR_CODE_OVERLOADED: MeshErrorCode.OVERLOADED,
}

EventsByHandle = dict[int, list[HandoffEvent]]


@dataclass(slots=True)
class _Run:
    """Consecutive tokens of one handle."""

    first_index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def event(self, role: Role) -> NewTokens:
        return NewTokens(role, self.first_index, tuple(self.tokens), tuple(self.logprobs))


def decode_events(frame: decode_pb2.DecodeFrame, role: Role) -> EventsByHandle:
    """What the frame says of each handle: opening events, tokens, closing events. Raises ValueError for a malformed frame."""
    events: EventsByHandle = {}
    for opening in frame.opening:
        events.setdefault(opening.handle, []).append(_opening_event(opening, role))
    handles = list(frame.handle)
    if len(set(handles)) == len(handles) and not frame.logprobs_of:  # as of a step, which almost every frame is
        for handle, index, token in zip(handles, frame.index, frame.token, strict=True):
            events.setdefault(handle, []).append(NewTokens(role, index, (token,)))
    else:
        for handle, run in _token_runs(frame):
            events.setdefault(handle, []).append(run.event(role))
    for closing in frame.closing:
        events.setdefault(closing.handle, []).append(_closing_event(closing, role))
    return events


def decoder_load(load: decode_pb2.DecodeLoad) -> DecoderLoad:
    """Raises ValueError where the load names no slots."""
    if load.slots < 1:
        raise ValueError("load.slots: at least 1")
    return DecoderLoad(load.running, load.waiting, load.slots, load.kv_used, load.step_us / 1e6)


def _token_runs(frame: decode_pb2.DecodeFrame) -> list[tuple[int, _Run]]:
    """Each handle's tokens as runs of consecutive indices. More than one run of a handle is for the handoff machine to refuse."""
    logprobs = {
        position: logprobs_from_proto(message)
        for position, message in zip(frame.logprobs_of, frame.logprobs, strict=True)  # ValueError where they do not pair up
    }
    runs: list[tuple[int, _Run]] = []
    current: dict[int, _Run] = {}
    for position, (handle, index, token) in enumerate(zip(frame.handle, frame.index, frame.token, strict=True)):
        run = current.get(handle)
        if run is None or index != run.first_index + len(run.tokens):
            run = current[handle] = _Run(index)
            runs.append((handle, run))
        run.tokens.append(token)
        if logprobs and position in logprobs:
            run.logprobs.append(logprobs[position])
    return runs


def _opening_event(opening: decode_pb2.OpeningEvent, role: Role) -> HandoffEvent:
    match opening.WhichOneof("event"):
        case "wanted":
            return Wanted(role, opening.wanted.missing_blocks, opening.wanted.missing_bytes)
        case "kv_ready":
            return KvReady(role)
        case "extended":
            return _extended(opening.extended, role)
        case "recalled":
            return Recalled(role)
        case other:
            raise ValueError(f"opening event {other!r} of handle {opening.handle} is not known")


def _extended(message: decode_pb2.Extended, role: Role) -> Extended:
    return Extended(
        role,
        message.next_index,
        message.computed_tokens,
        message.compute_us / 1e6,
        message.scored_tokens,
        message.agreed_tokens,
    )


def _closing_event(closing: decode_pb2.ClosingEvent, role: Role) -> HandoffEvent:
    match closing.WhichOneof("event"):
        case "stopped":
            return Stopped(role, closing.stopped.next_index)
        case "finished":
            reason = FINISH_REASONS.get(closing.finished.reason)
            if reason is None:
                raise ValueError(f"finish reason {closing.finished.reason} of handle {closing.handle} is not known")
            return Finished(role, reason, closing.finished.next_index)
        case "error":
            return Failed(role, _ERROR_CODES.get(closing.error.code, MeshErrorCode.ENGINE_FAILED), closing.error.message)
        case "aborted":
            return Closed(role)
        case other:
            raise ValueError(f"closing event {other!r} of handle {closing.handle} is not known")
