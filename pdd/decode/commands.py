"""A gateway's commands, checked: where a decoder stops trusting its peer.

Called by the session for every DecodeCommand that needs checking beyond its handle. Pure: a message in, data or a ValueError that
names the field out. What a command means for a handle is decided in `handles`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.identity import RequestId
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_from_proto
from pdd.v1 import decode_pb2


@dataclass(frozen=True, slots=True)
class Rules:
    """What a decoder's role and engine allow."""

    role: str  # as a person calls it: "relay", "main"
    takes_handoff: bool  # Extend is allowed, and nothing decodes before it
    decodes_on_commit: bool  # decoding starts from the commit's index 0
    context_tokens: int  # prompt and output of one sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """A checked Admit."""

    request: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: str
    lease_s: float


def admission_from_proto(message: decode_pb2.Admit, rules: Rules) -> Admission:
    """Raises ValueError that names the field and what it must be."""
    request = RequestId.from_proto(message.request)
    if request.gateway == 0 or request.counter == 0:
        raise ValueError(f"request: gateway and counter must be set, got {request}")
    if not message.prompt_ids:
        raise ValueError("prompt_ids: at least 1 token")
    if len(message.prompt_ids) >= rules.context_tokens:
        raise ValueError(
            f"prompt_ids: {len(message.prompt_ids)} tokens leave no room for output in a context of {rules.context_tokens}; "
            "raise PDD_CONTEXT_TOKENS or shorten the prompt"
        )
    if message.lease_ms < 1:
        raise ValueError("lease_ms: at least 1")
    if message.decode_on_commit != rules.decodes_on_commit:
        need = "must be true: it decodes from the commit" if rules.decodes_on_commit else "must be false: it waits for Extend"
        raise ValueError(f"decode_on_commit: on a {rules.role} it {need}")
    try:
        sampling = sampling_from_proto(message.sampling)
    except ValueError as error:
        raise ValueError(f"sampling.{error}") from error
    return Admission(request, tuple(message.prompt_ids), sampling, message.salt, message.lease_ms / 1000)
