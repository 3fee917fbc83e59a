"""Every metric of every process, as it is told, and as docs/metrics.md has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry, Metric

from gateway.generation import MeshErrorCode, Span, Timeline, Usage
from gateway.handoff.machine import Pipeline
from gateway.metrics import GatewayMetrics, MeshMetrics
from gateway.routing.plan import Plan, ReasonCode
from gateway.workers import Worker
from pdd.catalog.base import Role
from tests.support.metered import metered_instance
from tests.unit.gateway.instances import registration
from wan.link import LinkSettings
from wan.metrics import LinkState
from wan.relay import Relay

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "metrics.md").read_text()
EVERYWHERE = frozenset({"role", "instance_id"})  # labels of every sample of a service
PARTS = ("_bucket", "_count", "_sum")  # of a histogram
_ROW = re.compile(r"^\| `(pdd_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Described:
    kind: str  # counter, gauge or histogram
    labels: frozenset[str] | None  # None: not known, since there are no samples yet


Metrics = dict[str, Described]


def documented() -> dict[str, Metrics]:
    """By process. A heading names whose its metrics are."""
    found: dict[str, Metrics] = {name: {} for name in ("gateway", "wan", *(role.value for role in Role))}
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        heading = section.splitlines()[0]
        rows = {row[1]: Described(row[2], frozenset(re.findall(r"`(\w+)`", row[3]))) for row in _ROW.finditer(section)}
        for process in found:
            if process in heading:
                found[process] |= rows
    return found


async def told() -> dict[str, Metrics]:
    """By process, after something of each kind has happened."""
    found = {"gateway": _described(_gateway()), "wan": _described(await _wan())}
    for role in Role:
        async with metered_instance(role) as metered:
            found[role.value] = {name: _without_whose(one) for name, one in _described(metered.registry).items()}
    return found


def _gateway() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics, observer = GatewayMetrics(registry), MeshMetrics(registry)
    Worker(registry)
    metrics.request_began("/v1/completions")
    metrics.request_ended("/v1/completions", "200", 1.0)
    metrics.first_tokens(0.1)
    metrics.next_tokens(0.1)
    metrics.tokens("main-0", 1)
    metrics.generation_ended(Usage(10, 5, 3), Timeline("direct", main_cached_tokens=2))
    metrics.generation_failed(MeshErrorCode.DEADLINE)
    prefill, relay, main = (registration(role) for role in (Role.PREFILL, Role.RELAY, Role.MAIN))
    observer.queued(0.1)
    observer.planned(Plan(Pipeline.RELAY, prefill, relay, main, ReasonCode.LOW_HIT, "", 0, 0, 0.0, 16, 0, 10), 100)
    observer.joined(Role.RELAY)
    observer.handoff_done(Timeline("relay", "one_shot", (Span("extend", "main-0", 0.0, 1.0, 3),)))
    observer.events_dropped("main-0", 1)
    observer.abort_unanswered("main-0")
    observer.link_changed("main-0", True)
    return registry


async def _wan() -> CollectorRegistry:
    registry = CollectorRegistry()
    async with Relay(LinkSettings(), "127.0.0.1", Random(1)) as relay:
        await relay.lease("main-0", "127.0.0.1:9")
        registry.register(LinkState(relay))
        return registry


def _described(registry: CollectorRegistry) -> Metrics:
    return {name: one for family in registry.collect() for name, one in _of(family) if name.startswith("pdd_")}


def _of(family: Metric) -> Iterator[tuple[str, Described]]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = [frozenset(sample.labels) - {"le"} for sample in family.samples]
    yield name, Described(family.type, labels[0] if labels else None)


def _without_whose(one: Described) -> Described:
    return one if one.labels is None else Described(one.kind, one.labels - EVERYWHERE)


def sample_names(metrics: Mapping[str, Described]) -> set[str]:
    """As a query names them."""
    histograms = {name for name, one in metrics.items() if one.kind == "histogram"}
    return (set(metrics) - histograms) | {name + part for name in histograms for part in PARTS}
