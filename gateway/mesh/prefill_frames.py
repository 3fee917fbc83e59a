"""A prefill instance's frame, read as handoff events. Pure; called by `prefill_link` for every frame.

Prefill names the targets of a transfer by instance id. Which role a target has is known to the handle: the gateway chose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.generation import MeshErrorCode
from gateway.handoff.events import Closed, Failed, FirstToken, HandoffEvent, TransferDone, TransferFailed, Wanted
from gateway.mesh.decode_frames import FINISH_REASONS, EventsByHandle
from pdd.catalog.base import Role
from pdd.sampling_proto import logprobs_from_proto
from pdd.v1 import kv_pb2, prefill_pb2, sampling_pb2

Targets = Mapping[str, Role]  # by instance id

_ERROR_CODES = {
    prefill_pb2.PREFILL_ERROR_CODE_OVERLOADED: MeshErrorCode.OVERLOADED,
    prefill_pb2.PREFILL_ERROR_CODE_LEASE_EXPIRED: MeshErrorCode.DEADLINE,
}

_TRANSFER_CODES = {
    kv_pb2.REFUSAL_REASON_UNSPECIFIED: MeshErrorCode.PEER_LOST,
    kv_pb2.REFUSAL_REASON_NO_MEMORY: MeshErrorCode.OVERLOADED,
    kv_pb2.REFUSAL_REASON_BACKLOG: MeshErrorCode.OVERLOADED,
    kv_pb2.REFUSAL_REASON_LEASE_EXPIRED: MeshErrorCode.DEADLINE,
}


def prefill_events(frame: prefill_pb2.PrefillFrame, targets_of: Callable[[int], Targets]) -> EventsByHandle:
    """What the frame says of each handle, in order. Raises ValueError for a malformed frame."""
    events: EventsByHandle = {}
    for message in frame.events:
        events.setdefault(message.handle, []).append(_event(message, targets_of(message.handle)))
    return events


def _event(message: prefill_pb2.PrefillEvent, targets: Targets) -> HandoffEvent:
    match message.WhichOneof("event"):
        case "first_token":
            return _first_token(message.first_token)
        case "wanted":
            wanted = message.wanted
            role = targets.get(wanted.target)
            return _no_target(wanted.target) if role is None else Wanted(role, wanted.missing_blocks, wanted.missing_bytes)
        case "transfer_done":
            return _transfer_done(message.transfer_done, targets)
        case "transfer_failed":
            return _transfer_failed(message.transfer_failed, targets)
        case "failed":
            code = _ERROR_CODES.get(message.failed.code, MeshErrorCode.ENGINE_FAILED)
            return Failed(Role.PREFILL, code, message.failed.message)
        case "released":
            return Closed(Role.PREFILL)
        case other:
            raise ValueError(f"event {other!r} of handle {message.handle} is not known")


def _first_token(message: prefill_pb2.FirstToken) -> FirstToken:
    finish = FINISH_REASONS.get(message.finish)
    if finish is None and message.finish != sampling_pb2.FINISH_REASON_UNSPECIFIED:
        raise ValueError(f"finish reason {message.finish} is not known")
    return FirstToken(
        token=message.token,
        finish=finish,
        logprobs=logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else None,
        computed_tokens=message.computed_tokens,
        cached_tokens=message.cached_tokens,
        compute_s=message.compute_us / 1e6,
    )


def _transfer_done(message: prefill_pb2.TransferDone, targets: Targets) -> HandoffEvent:
    role = targets.get(message.target)
    if role is None:
        return _no_target(message.target)
    duration_us = message.first_frame_to_commit_us if message.blocks else message.offer_to_commit_us
    return TransferDone(role, message.blocks, message.bytes, duration_us / 1e6)


def _transfer_failed(message: prefill_pb2.TransferFailed, targets: Targets) -> HandoffEvent:
    role = targets.get(message.target)
    if role is None:
        return _no_target(message.target)
    code = _TRANSFER_CODES.get(message.reason, MeshErrorCode.KV_REFUSED)
    if message.reason == kv_pb2.REFUSAL_REASON_UNSPECIFIED:
        return TransferFailed(role, f"lost during the transfer: {message.message}", code)
    # An enum value of a newer peer has no name here, and is no reason to lose the message.
    names = kv_pb2.RefusalReason.DESCRIPTOR.values_by_number
    name = names[message.reason].name.removeprefix("REFUSAL_REASON_") if message.reason in names else str(message.reason)
    return TransferFailed(role, f"refused the transfer, {name}: {message.message}", code)


def _no_target(target: str) -> Failed:
    return Failed(
        Role.PREFILL, MeshErrorCode.ENGINE_FAILED, f"spoke of a transfer to {target!r}, which the request does not have"
    )
