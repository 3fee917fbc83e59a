"""What a handoff is measured under, and what is measured of one. Used by the parts of `bench.handoff`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pdd.engine.sim.cost import HARDWARE, MODELS, HardwareProfile, ModelProfile
from wan.link import LinkSettings

STEP_S = 0.025
MODEL = MODELS["dense-8b"]
# gpu-a with a memory so slow that a decode step of few sequences takes STEP_S: the time to read the weights.
GPU = replace(HARDWARE["gpu-a"], name="gpu-a, 25 ms a step", memory_bytes_s=MODEL.weight_bytes / STEP_S, overhead_s=0.0)


@dataclass(frozen=True, slots=True)
class Setting:
    link: LinkSettings
    bystanders: int
    eager_tokens: int  # wanted; how many it really are depends on when the prompt's KV has crossed
    prompt_tokens: int = 0
    hardware: HardwareProfile = GPU
    model: ModelProfile = MODEL
    step_s: float = STEP_S


@dataclass(frozen=True, slots=True)
class Sample:
    """One handoff; times in seconds."""

    mode: str  # as it went in the end
    eager_tokens: int
    latency_s: float
    raw_gap_s: float
    user_gap_s: float | None  # None where nobody looked
    bystander_gap_s: float
    bystander_before_s: float
