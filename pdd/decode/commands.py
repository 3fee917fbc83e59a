"""What a decoder's role allows a gateway to ask for. Pure; called by the session and the handle table."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.request_proto import RequestSpec, spec_from_proto
from pdd.v1 import decode_pb2


@dataclass(frozen=True, slots=True)
class Rules:
    """What a decoder's role and engine allow."""

    role: str  # as a person calls it: "relay", "main"
    takes_handoff: bool  # Extend and Recall are allowed, and nothing decodes before an Extend
    decodes_on_commit: bool  # decoding starts from the commit's index 0
    retains_output: bool  # what it computed of an answer goes into its prefix cache
    context_tokens: int  # prompt and output of one sequence


def spec_of_admit(message: decode_pb2.Admit, rules: Rules) -> RequestSpec:
    """Raises ValueError that names the field and what it must be."""
    spec = spec_from_proto(message, rules.context_tokens)
    if message.decode_on_commit != rules.decodes_on_commit:
        need = "must be true: it decodes from the commit" if rules.decodes_on_commit else "must be false: it waits for Extend"
        raise ValueError(f"decode_on_commit: on a {rules.role} it {need}")
    return spec
