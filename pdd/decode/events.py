"""The events of a DecodeFrame, built from what the receiver and the engine report. Pure."""

from __future__ import annotations

from pdd.engine.base import Aborted, Extended, Failed, Finished, FinishReason, Stopped
from pdd.transfer.base import Refusal
from pdd.v1 import decode_pb2, sampling_pb2

EngineClosing = Stopped | Finished | Aborted | Failed

BAD_COMMAND = decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
UNKNOWN_HANDLE = decode_pb2.HANDLE_ERROR_CODE_UNKNOWN_HANDLE
OVERLOADED = decode_pb2.HANDLE_ERROR_CODE_OVERLOADED

_FINISH = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_REFUSED = {
    Refusal.LEASE_EXPIRED: decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED,
    Refusal.NO_MEMORY: decode_pb2.HANDLE_ERROR_CODE_OVERLOADED,
}


def wanted(handle: int, missing_blocks: int, missing_bytes: int) -> decode_pb2.OpeningEvent:
    return decode_pb2.OpeningEvent(
        handle=handle, wanted=decode_pb2.Wanted(missing_blocks=missing_blocks, missing_bytes=missing_bytes)
    )


def kv_ready(handle: int, blocks: int) -> decode_pb2.OpeningEvent:
    return decode_pb2.OpeningEvent(handle=handle, kv_ready=decode_pb2.KvReady(blocks=blocks))


def extended(handle: int, event: Extended) -> decode_pb2.OpeningEvent:
    message = decode_pb2.Extended(
        next_index=event.next_index,
        computed_tokens=event.computed_tokens,
        compute_us=round(event.compute_s * 1e6),
        scored_tokens=event.scored_tokens,
        agreed_tokens=event.agreed_tokens,
    )
    return decode_pb2.OpeningEvent(handle=handle, extended=message)


def recalled(handle: int) -> decode_pb2.OpeningEvent:
    return decode_pb2.OpeningEvent(handle=handle, recalled=decode_pb2.Recalled())


def error(handle: int, code: decode_pb2.HandleErrorCode.ValueType, message: str) -> decode_pb2.ClosingEvent:
    return decode_pb2.ClosingEvent(handle=handle, error=decode_pb2.HandleError(code=code, message=message))


def aborted(handle: int) -> decode_pb2.ClosingEvent:
    return decode_pb2.ClosingEvent(handle=handle, aborted=decode_pb2.Aborted())


def stopped(handle: int, next_index: int) -> decode_pb2.ClosingEvent:
    return decode_pb2.ClosingEvent(handle=handle, stopped=decode_pb2.Stopped(next_index=next_index))


def kv_failed(handle: int, reason: Refusal | None, message: str) -> decode_pb2.ClosingEvent:
    """`reason` None: the sender was lost. The reason's name leads the text, since the codes are coarser than the reasons."""
    name = "SENDER_LOST" if reason is None else reason.name
    code = _REFUSED.get(reason, decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED) if reason else decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED
    return error(handle, code, f"{name}: {message}")


def engine_closed(handle: int, event: EngineClosing) -> decode_pb2.ClosingEvent:
    match event:
        case Stopped(next_index=next_index):
            return stopped(handle, next_index)
        case Finished(reason=reason, next_index=next_index):
            finished = decode_pb2.Finished(reason=_FINISH[reason], next_index=next_index)
            return decode_pb2.ClosingEvent(handle=handle, finished=finished)
        case Aborted():
            return aborted(handle)
        case Failed(fault=fault):
            return error(handle, decode_pb2.HANDLE_ERROR_CODE_ENGINE_FAILED, str(fault))
