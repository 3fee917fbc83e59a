"""A request as the gateway announces it to any instance: what Admit and StartPrefill have in common, checked.

Called by the sessions of decoders and of prefill. This and `sampling_proto` are where an instance stops trusting its peer. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.identity import RequestId
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_from_proto
from pdd.tracing.context import CONTEXT_BYTES
from pdd.v1 import decode_pb2, prefill_pb2


@dataclass(frozen=True, slots=True)
class RequestSpec:
    request: RequestId
    prompt: tuple[int, ...] = field(repr=False)
    sampling: SamplingParams
    salt: str  # enters every block hash
    lease_s: float
    trace: bytes = b""  # as in Admit


def spec_from_proto(message: decode_pb2.Admit | prefill_pb2.StartPrefill, context_tokens: int) -> RequestSpec:
    """`context_tokens` is what the instance's engine takes, prompt and output. Raises ValueError that names the field."""
    request = RequestId.from_proto(message.request)
    if request.gateway == 0 or request.counter == 0:
        raise ValueError(f"request: gateway and counter must be set, got {request}")
    if not message.prompt_ids:
        raise ValueError("prompt_ids: at least 1 token")
    if len(message.prompt_ids) >= context_tokens:
        raise ValueError(
            f"prompt_ids: {len(message.prompt_ids)} tokens leave no room for output in a context of {context_tokens}; "
            "raise PDD_CONTEXT_TOKENS or shorten the prompt"
        )
    if message.lease_ms < 1:
        raise ValueError("lease_ms: at least 1")
    try:
        sampling = sampling_from_proto(message.sampling)
    except ValueError as error:
        raise ValueError(f"sampling.{error}") from error
    if message.trace and len(message.trace) != CONTEXT_BYTES:
        raise ValueError(f"trace: {CONTEXT_BYTES} bytes or none, got {len(message.trace)}")
    return RequestSpec(request, tuple(message.prompt_ids), sampling, message.salt, message.lease_ms / 1000, message.trace)
