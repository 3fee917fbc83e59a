"""What the batch engine asks of a model: rows in, logits out, KV in and out by whole blocks.

Implemented by `sim.model` and `llama.model`, called only by `batch`, always from one thread at a time. A model never samples,
schedules or waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pdd.engine.base import Capabilities, Payload
from pdd.kv.layout import KvLayout


class Logits(Protocol):
    """The scores of one row. Lazy, so that a greedy sim never builds the array."""

    def argmax(self) -> int: ...

    def array(self) -> NDArray[np.float32]:
        """Shape (vocabulary,), unnormalised. Valid until the model's next call."""
        ...


class Row(NamedTuple):
    """One token of a forward pass."""

    slot: int
    position: int  # from 0 at the prompt's start; rows of a slot come in order and without holes
    token: int
    want_logits: bool


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long the pass would take on the simulated device; 0 where it took its time already."""

    simulated_s: float = 0.0


class Model(ABC):
    """`capabilities` and `layout` are known before it is loaded."""

    capabilities: Capabilities
    layout: KvLayout

    @abstractmethod
    def load(self) -> None:
        """Called once, on the compute thread, before anything else. Raises EngineFault."""

    @abstractmethod
    def close(self) -> None:
        """Called once, last, also after a `load` that failed."""

    @abstractmethod
    def forward(self, rows: Sequence[Row]) -> tuple[list[Logits], StepCost]:
        """Compute the rows and return the logits of those that want them, in order."""

    @abstractmethod
    def import_kv(self, slot: int, payloads: Sequence[Payload]) -> None:
        """Fill an empty slot with the blocks from position 0 on. Raises EngineFault where they do not parse."""

    @abstractmethod
    def export_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        """Blocks [first_block, last_block), each `layout.block_tokens` tokens, computed already."""

    def take_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        """As `export_kv`, of a slot that is cleared before it is used again, so that what else it holds may be lost."""
        return self.export_kv(slot, first_block, last_block)

    @abstractmethod
    def clear(self, slot: int) -> None: ...
