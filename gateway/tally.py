"""Prometheus metrics for what happens with every token: as cheap as adding up can be.

Used by `metrics`. A stock metric costs a lock and several calls each time it is touched, and a write to a file where workers
share theirs; these add to plain numbers, and write them down in a stock metric whenever they are collected. For one thread only,
the event loop's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.registry import Collector


class HistogramTally(Histogram):
    """A histogram without labels. `bounds` are its buckets' upper ends, ascending."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        super().__init__(name, text, buckets=bounds, registry=None)
        self._ends = tuple(bounds)
        self._added = [0] * (len(self._ends) + 1)
        self._added_sum = 0.0

    def observe(self, amount: float, exemplar: object = None) -> None:
        self._added[bisect_left(self._ends, amount)] += 1
        self._added_sum += amount

    def collect(self) -> Iterable[Metric]:
        self._write_down()
        return super().collect()

    def _write_down(self) -> None:
        for bucket, count in zip(self._buckets, self._added, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(self._added_sum)
        self._added = [0] * len(self._added)
        self._added_sum = 0.0


class CounterTally(Collector):
    """A counter with one label."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self._written = Counter(name, text, [label], registry=None)
        self._added: dict[str, int] = {}

    def add(self, label: str, count: int) -> None:
        self._added[label] = self._added.get(label, 0) + count

    def collect(self) -> Iterable[Metric]:
        for label, count in self._added.items():
            self._written.labels(label).inc(count)
        self._added.clear()
        return self._written.collect()
