"""What routing decides for a request: its pipeline, its instances, and why. Data, and its text for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.handoff.machine import Pipeline
from pdd.catalog.base import Registration, Role


class ReasonCode(enum.Enum):
    """Why the pipeline was chosen; the label of the metric."""

    HIGH_HIT = "high_hit"  # direct: main has most of the prompt, the rest crosses within the stall budget
    WITHIN_BUDGET = "within_budget"  # direct: main has little of it, but the line carries the rest within the stall budget
    LOW_HIT = "low_hit"  # relay: the rest takes longer than the stall budget
    SINGULAR = "singular"  # singular: the relay ends before the rest would have crossed
    NO_RELAY = "no_relay"  # direct with a stall: no relay could take the request
    RELAY_FULL = "relay_full"  # direct with a stall: no relay had a slot within the TTFT budget
    FORCED = "forced"  # the configured pipeline
    RELAY_ALONE = "relay_alone"  # singular: a benchmark's policy


@dataclass(frozen=True, slots=True)
class Plan:
    pipeline: Pipeline
    prefill: Registration
    relay: Registration | None  # None in pipeline `direct`
    main: Registration | None  # None in pipeline `singular`
    reason_code: ReasonCode
    reason: str  # for a person
    missing_tokens: int  # of full blocks, on the main; in pipeline `singular` on the one that would have been chosen
    missing_bytes: int
    transfer_s: float  # estimate: until main has them
    prefill_hit_tokens: int
    main_hit_tokens: int
    expected_output_tokens: int

    @property
    def aligned_hit_tokens(self) -> int:
        """Prompt tokens that are neither computed nor sent: what both caches have."""
        return min(self.prefill_hit_tokens, self.main_hit_tokens)

    def instances(self) -> dict[Role, Registration]:
        chosen = {Role.PREFILL: self.prefill, Role.RELAY: self.relay, Role.MAIN: self.main}
        return {role: registration for role, registration in chosen.items() if registration is not None}

    def header(self) -> str:
        """The response header `x-pdd-plan`: `key=value` pairs between "; ", in ASCII; the last is the reason in words."""
        pairs: dict[str, object] = {"pipeline": self.pipeline.value, "code": self.reason_code.value}
        pairs |= {role.value: registration.instance.id for role, registration in self.instances().items()}
        pairs |= {
            "prefill_hit_tokens": self.prefill_hit_tokens,
            "main_hit_tokens": self.main_hit_tokens,
            "missing_tokens": self.missing_tokens,
            "missing_bytes": self.missing_bytes,
            "transfer_ms": round(self.transfer_s * 1000),
            "reason": self.reason,
        }
        return "; ".join(f"{key}={_plain(str(value))}" for key, value in pairs.items())


@dataclass(frozen=True, slots=True)
class Wait:
    """The request needs a relay, and all are full: decide again when one has a slot, or after `at_most_s`."""

    at_most_s: float  # > 0
    reason: str


def _plain(text: str) -> str:
    """Text that can neither end its pair nor the header's line."""
    if text.isascii() and text.isprintable() and ";" not in text:
        return text
    return "".join(char if " " <= char <= "~" and char != ";" else "?" for char in text)
