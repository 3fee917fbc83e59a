"""The events of a PrefillFrame, built from what the engine and the senders report. Pure."""

from __future__ import annotations

from typing import TypeAlias

from pdd.engine.base import FinishReason, Prefilled, TokenOut
from pdd.sampling_proto import logprobs_to_proto
from pdd.transfer.base import Refusal
from pdd.transfer.outbound import TransferReport
from pdd.v1 import kv_pb2, prefill_pb2, sampling_pb2

BAD_COMMAND = prefill_pb2.PREFILL_ERROR_CODE_BAD_COMMAND
UNKNOWN_HANDLE = prefill_pb2.PREFILL_ERROR_CODE_UNKNOWN_HANDLE
OVERLOADED = prefill_pb2.PREFILL_ERROR_CODE_OVERLOADED
ENGINE_FAILED = prefill_pb2.PREFILL_ERROR_CODE_ENGINE_FAILED
LEASE_EXPIRED = prefill_pb2.PREFILL_ERROR_CODE_LEASE_EXPIRED

ErrorCode: TypeAlias = "prefill_pb2.PrefillErrorCode.ValueType"

_FINISH = {
    None: sampling_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}


def first_token(handle: int, out: TokenOut, event: Prefilled, prompt_tokens: int) -> prefill_pb2.PrefillEvent:
    message = prefill_pb2.FirstToken(
        token=out.token,
        logprobs=None if out.logprobs is None else logprobs_to_proto(out.logprobs),
        finish=_FINISH[event.finish],
        computed_tokens=event.computed_tokens,
        cached_tokens=prompt_tokens - event.computed_tokens,
        queued_us=round(event.queued_s * 1e6),
        compute_us=round(event.compute_s * 1e6),
    )
    return prefill_pb2.PrefillEvent(handle=handle, first_token=message)


def wanted(handle: int, target: str, missing_blocks: int, missing_bytes: int) -> prefill_pb2.PrefillEvent:
    message = prefill_pb2.TransferWanted(target=target, missing_blocks=missing_blocks, missing_bytes=missing_bytes)
    return prefill_pb2.PrefillEvent(handle=handle, wanted=message)


def transfer_done(handle: int, target: str, report: TransferReport) -> prefill_pb2.PrefillEvent:
    message = prefill_pb2.TransferDone(
        target=target,
        blocks=report.blocks,
        bytes=report.bytes,
        offer_to_commit_us=round(report.offer_to_commit_s * 1e6),
        first_frame_to_commit_us=round(report.first_frame_to_commit_s * 1e6),
    )
    return prefill_pb2.PrefillEvent(handle=handle, transfer_done=message)


def transfer_failed(handle: int, target: str, reason: Refusal | None, text: str) -> prefill_pb2.PrefillEvent:
    """`reason` None: the peer was lost rather than answering."""
    code = kv_pb2.REFUSAL_REASON_UNSPECIFIED if reason is None else reason.value
    message = prefill_pb2.TransferFailed(target=target, reason=code, message=text)
    return prefill_pb2.PrefillEvent(handle=handle, transfer_failed=message)


def failed(handle: int, code: ErrorCode, text: str) -> prefill_pb2.PrefillEvent:
    return prefill_pb2.PrefillEvent(handle=handle, failed=prefill_pb2.PrefillFailed(code=code, message=text))


def released(handle: int) -> prefill_pb2.PrefillEvent:
    return prefill_pb2.PrefillEvent(handle=handle, released=prefill_pb2.Released())
