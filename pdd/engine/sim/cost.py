"""How long a step would take on a device, by the roofline model.

Called by `model` for every step. Pure. A device is four numbers, as in vendors' data sheets; a model is its sizes. The roofline
(Williams, Waterman, Patterson 2009) says that a pass takes as long as the slower of computing and moving bytes:

    compute_s = rows * (2 * parameters) / flops + attended * (4 * layers * attention_width) / flops
    memory_s  = (weight_bytes + held * kv_bytes) / memory_bytes_s
    import_s  = imported_bytes / interconnect_bytes_s
    cost_s    = overhead_s + import_s + max(compute_s, memory_s)

2 * parameters is a token's multiplications and additions in the weights (Kaplan et al. 2020, section 2.1). `attended` sums, over
the rows, the tokens each looks at: queries times keys and scores times values make 4 * attention_width operations for each, per
layer. `held` sums the KV of the slots in the step, which is read once however many rows a slot has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A device by the rates a pass reaches on it."""

    name: str
    flops: float  # operations a second
    memory_bytes_s: float
    memory_bytes: float
    interconnect_bytes_s: float  # KV from host memory or a neighbour
    overhead_s: float  # of a step, whatever is in it


@dataclass(frozen=True, slots=True)
class ModelProfile:
    name: str
    parameters: float
    weight_bytes: float
    layers: int
    attention_width: int  # query heads times head size
    kv_heads: int
    head_size: int
    kv_element_bytes: int = 2  # on the device; 2 is f16, which is what goes over the wire

    @property
    def kv_bytes(self) -> int:
        """Of one token: keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_element_bytes


@dataclass(frozen=True, slots=True)
class StepShape:
    rows: int
    attended: int  # over the rows, tokens each looks at, itself included
    held: int  # over the slots with rows, tokens in the KV
    imported_bytes: int = 0


def step_cost_s(shape: StepShape, hardware: HardwareProfile, model: ModelProfile) -> float:
    """Seconds; the formula is the module's."""
    operations = shape.rows * 2 * model.parameters + shape.attended * 4 * model.layers * model.attention_width
    moved = model.weight_bytes + shape.held * model.kv_bytes
    passed_s = max(operations / hardware.flops, moved / hardware.memory_bytes_s)
    return hardware.overhead_s + shape.imported_bytes / hardware.interconnect_bytes_s + passed_s


def kv_capacity_tokens(hardware: HardwareProfile, model: ModelProfile) -> float:
    """Tokens of KV that fit beside the weights; infinite where memory is."""
    return max(0.0, hardware.memory_bytes - model.weight_bytes) / model.kv_bytes


_FREE = float("inf")

HARDWARE: Mapping[str, HardwareProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            # Nothing takes time: for tests.
            HardwareProfile("instant", _FREE, _FREE, _FREE, _FREE, 0.0),
            # For a person watching: with "tiny", 10 ms a decode step and 1,500 prompt tokens a second.
            HardwareProfile("cpu-tiny", 4.15e11, 30e9, 16e9, 8e9, 1e-3),
            # Strong at prefill for its price: dense f16 rate, GDDR6 and PCIe 4.0 of NVIDIA's L40S data sheet.
            HardwareProfile("gpu-a", 362e12, 864e9, 48e9, 32e9, 1e-3),
            # Strong at decode: dense f16 rate, HBM3 and NVLink as published for NVIDIA's H20.
            HardwareProfile("gpu-b", 148e12, 4.0e12, 96e9, 450e9, 1e-3),
        )
    }
)

MODELS: Mapping[str, ModelProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            # The sizes of SmolLM2-135M in f16: 23,040 bytes of KV a token.
            ModelProfile("tiny", 134.5e6, 269e6, 30, 576, 3, 64),
            # The sizes of Llama 3 8B in f16: 131,072 bytes of KV a token.
            ModelProfile("dense-8b", 8.03e9, 16.06e9, 32, 4096, 8, 128),
        )
    }
)
