"""Prometheus metrics for what happens with every token: as cheap as adding up can be.

Used by `metrics`. A stock metric costs a lock and several calls each time it is touched; these add to plain numbers and are
turned into metrics when they are scraped. For one thread only, the event loop's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class HistogramTally(Collector):
    """A histogram without labels. `bounds` are its buckets' upper ends, ascending."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class CounterTally(Collector):
    """A counter with one label."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._counts: dict[str, int] = {}

    def add(self, label: str, count: int) -> None:
        self._counts[label] = self._counts.get(label, 0) + count

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for label, count in self._counts.items():
            family.add_metric([label], count)
        yield family
