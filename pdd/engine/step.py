"""One step of the batch as data: what the scheduler asks for, and what computing it gave.

Made by `schedule`, computed by `compute`, given back to `schedule`. Immutable, so that the compute thread can read a step while
the event loop's thread takes further commands. What is made for every token is a named tuple, at half of a dataclass's price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pdd.engine.base import EngineFault, KvSource, Payload, SeqId
from pdd.engine.model import Row, StepCost
from pdd.sampling import History, Sampled, SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """Choose the token at output `index` from the logits of one row."""

    params: SamplingParams
    index: int
    history: History


class Work(NamedTuple):
    """One sequence's share of a step, in the order it is to be done: clear, import, rows, draws, export.

    Each row that wants logits has a draw: those of `scores` in order, and `draw` for the last row. Without rows it is a
    sequence's last one, which only exports.
    """

    seq: SeqId
    slot: int
    rows: tuple[Row, ...]
    clear: bool = False  # the slot may hold what another sequence left
    kv: KvSource | None = None  # to import before the rows
    scores: tuple[Draw, ...] = ()  # what the sampler would choose where the ids are known
    draw: Draw | None = None  # the sequence's next token
    blocks: tuple[int, int] | None = None  # [first, last) to export


@dataclass(frozen=True, slots=True)
class Step:
    """Without works it has nothing to compute and only brings events."""

    number: int  # from 1
    started_s: float
    works: tuple[Work, ...]
    sequences: int = 0  # of the works, those that compute something
    computed_tokens: int = 0  # by them


@dataclass(frozen=True, slots=True)
class StepResult:
    """Every work's sequence has either its draws and its blocks here, or a fault."""

    sampled: Mapping[SeqId, Sampled] = field(default_factory=dict)
    scored: Mapping[SeqId, tuple[int, ...]] = field(default_factory=dict)  # the tokens of `Work.scores`
    blocks: Mapping[SeqId, tuple[Payload, ...]] = field(default_factory=dict)
    faults: Mapping[SeqId, EngineFault] = field(default_factory=dict)
    cost: StepCost = field(default_factory=StepCost)
