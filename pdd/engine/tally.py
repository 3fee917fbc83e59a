"""What an engine's steps add up to: how many, how long, how full.

Fed with every step by whoever reads them (a decoder, prefill), read when metrics are scraped. Plain numbers: a step must not get
dearer for being counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from pdd.engine.base import StepBatch


@dataclass(slots=True)
class Distribution:
    """How many values lie up to each bound; the last count is of those above all."""

    bounds: tuple[float, ...]  # ascending
    counts: list[int] = field(init=False)
    total: float = field(default=0.0, init=False)  # of the values

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def _durations() -> Distribution:
    return Distribution((0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0))


def _sequences() -> Distribution:
    return Distribution((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))


@dataclass(slots=True)
class StepTally:
    duration_s: Distribution = field(default_factory=_durations)  # of the steps that computed something
    sequences: Distribution = field(default_factory=_sequences)  # in each of these
    computed_tokens: int = 0  # of prompts, extends and decode rows
    sampled_tokens: int = 0

    def note(self, batch: StepBatch) -> None:
        if batch.sequences:
            self.duration_s.add(batch.duration_s)
            self.sequences.add(batch.sequences)
            self.computed_tokens += batch.computed_tokens
            self.sampled_tokens += len(batch.tokens)
