"""What the line is set to and has carried, for Prometheus: read from the relay at each scrape.

Served by `control`. Changes nothing and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from wan.link import Outage
from wan.relay import Relay

_BYTES_PER_MBIT = 125_000


class LinkState(Collector):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        yield from self._line()
        yield from self._forwards()

    def _line(self) -> Iterator[Metric]:
        link = self._relay.settings
        rate = math.inf if link.rate_mbit is None else link.rate_mbit * _BYTES_PER_MBIT
        yield GaugeMetricFamily("pdd_link_rate_bytes_per_second", "What the line can carry in each direction", value=rate)
        yield GaugeMetricFamily("pdd_link_round_trip_seconds", "Of the line alone", value=link.rtt_ms / 1000)
        yield GaugeMetricFamily("pdd_link_up", "0 while the line is in an outage", value=link.outage is Outage.NONE)

    def _forwards(self) -> Iterator[Metric]:
        crossed = CounterMetricFamily("pdd_link_bytes", "That have crossed the line", labels=["forward", "direction"])
        connections = GaugeMetricFamily("pdd_link_connections", "That are open", labels=["forward"])
        for forward in self._relay.counters().forwards:
            crossed.add_metric([forward.name, "a_to_b"], forward.a_to_b_bytes)
            crossed.add_metric([forward.name, "b_to_a"], forward.b_to_a_bytes)
            connections.add_metric([forward.name], sum(connection.open for connection in forward.connections))
        yield crossed
        yield connections
