"""Lengths, pauses and arrivals by chance. Used by the generated workloads; every draw takes the Random to draw from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution within bounds: most are short, some are long. In tokens, seconds or anything else."""

    median: float
    sigma: float  # of the logarithm
    least: float
    most: float

    def draw(self, random: Random) -> float:
        return min(self.most, max(self.least, random.lognormvariate(math.log(self.median), self.sigma)))

    def tokens(self, random: Random, scale: float) -> int:
        """`scale` times a draw, at least 1."""
        return max(1, int(self.draw(random) * scale))


def arrivals(random: Random, rate_s: float) -> Iterator[float]:
    """Times in seconds of a Poisson process with `rate_s` events a second; endless."""
    now_s = 0.0
    while True:
        now_s += random.expovariate(rate_s)
        yield now_s
