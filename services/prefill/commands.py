"""A gateway's StartPrefill, checked: where prefill stops trusting its peer. Pure; called by the session."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.identity import RequestId
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_from_proto
from pdd.v1 import prefill_pb2

MAX_TARGETS = 2


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder that gets the blocks."""

    id: str  # of its instance
    kv_address: str  # host:port as seen from here


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """A checked StartPrefill."""

    request: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: str
    targets: tuple[Target, ...]
    lease_s: float


def request_from_proto(message: prefill_pb2.StartPrefill, context_tokens: int) -> PrefillRequest:
    """Raises ValueError that names the field and what it must be."""
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
    return PrefillRequest(request, tuple(message.prompt_ids), sampling, message.salt, _targets(message), message.lease_ms / 1000)


def _targets(message: prefill_pb2.StartPrefill) -> tuple[Target, ...]:
    targets = tuple(Target(target.instance.id, target.kv_address) for target in message.targets)
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise ValueError(f"targets: 1 to {MAX_TARGETS} of them, got {len(targets)}")
    for target in targets:
        if not target.id or not target.kv_address:
            raise ValueError("targets: each needs instance.id and kv_address")
    if len({target.id for target in targets}) != len(targets):
        raise ValueError(f"targets: {targets[0].id} is named twice")
    return targets
