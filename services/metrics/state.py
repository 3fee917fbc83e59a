"""What an instance is and holds at the moment, read when it is scraped: engine, KV blocks, prefix cache, links, streams.

Made by `exposed` and registered with what the instance tells of as it happens. It changes nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from pdd.catalog.publisher import PublisherCounts
from pdd.decode.decoder import Decoder
from pdd.engine.tally import Distribution, StepTally
from pdd.v1 import prefill_pb2
from services.instances import Served
from services.prefill.worker import Worker


class InstanceState(Collector):
    """For every service."""

    def __init__(self, served: Served, site: str, published: PublisherCounts | None) -> None:
        self._served = served
        self._site = site
        self._published = published

    def collect(self) -> Iterator[Metric]:
        instance, layout = self._served.instance, self._served.engine.layout
        labels = {"site": self._site, "incarnation": f"{instance.incarnation:x}", "engine": layout.engine}
        info = GaugeMetricFamily("pdd_instance_info", "1, with what the instance is", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        yield GaugeMetricFamily("pdd_gateways_attached", "Streams of gateways", value=self._served.host.attached)
        yield from self._engine()
        yield from _steps(self._served.host.steps)
        yield from self._kv()
        if self._published is not None:
            failures = self._published.failures
            yield CounterMetricFamily("pdd_catalog_failures", "Calls that found the prefix catalog away", value=failures)

    def _engine(self) -> Iterator[Metric]:
        load = self._served.engine.load()
        yield GaugeMetricFamily("pdd_engine_slots", "Sequences that fit into a batch", value=load.slots)
        yield GaugeMetricFamily("pdd_engine_sequences_running", "Sequences that have a slot", value=load.running)
        yield GaugeMetricFamily("pdd_engine_sequences_waiting", "Sequences that want a slot", value=load.waiting)
        yield GaugeMetricFamily("pdd_engine_queued_tokens", "Prompt tokens to be computed", value=load.queued_tokens)
        yield GaugeMetricFamily("pdd_engine_kv_usage_ratio", "Share of the engine's KV cells in use", value=load.kv_used)

    def _kv(self) -> Iterator[Metric]:
        cache, store, block_bytes = self._served.cache, self._served.cache.store, self._served.engine.layout.block_bytes
        sizes = {
            "free": store.budget_bytes - store.used_bytes,
            "reserved": store.leased_bytes - store.filled_bytes,
            "transit": store.filled_bytes - store.sealed_bytes,
            "pinned": store.sealed_bytes,
            "cached": store.used_bytes - store.leased_bytes,
        }
        blocks = ((state, size // block_bytes) for state, size in sizes.items())
        yield _labelled(GaugeMetricFamily("pdd_kv_blocks", "KV blocks in host memory", labels=["state"]), blocks)
        yield GaugeMetricFamily("pdd_kv_block_bytes", "What a block stands for", value=block_bytes)
        yield GaugeMetricFamily("pdd_kv_budget_bytes", "Host memory for KV blocks", value=store.budget_bytes)
        yield GaugeMetricFamily("pdd_kv_leases", "Holds on runs of blocks", value=store.leases)
        yield GaugeMetricFamily("pdd_prefix_cache_limit_bytes", "What the prefix cache may hold", value=cache.limit_bytes)
        yield GaugeMetricFamily("pdd_prefix_cache_used_bytes", "What it holds, leased or not", value=cache.used_bytes)
        evicted = cache.evicted_blocks
        yield CounterMetricFamily("pdd_prefix_cache_evicted_blocks", "Blocks that made way for others", value=evicted)


class PrefillState(Collector):
    """For prefill: its jobs and its links."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        load = self._worker.load()
        yield GaugeMetricFamily("pdd_prefill_jobs_waiting", "Prompts that wait for a slot or another prompt", value=load.waiting)
        yield GaugeMetricFamily(
            "pdd_prefill_jobs_transferring", "Prompts computed, and held for a transfer", value=load.transferring
        )
        for name, text, of in _LINK_GAUGES:
            family = GaugeMetricFamily(name, text, labels=["target"])
            yield _labelled(family, ((link.target, of(link)) for link in load.links))


_LINK_GAUGES: tuple[tuple[str, str, Callable[[prefill_pb2.LinkLoad], float]], ...] = (
    ("pdd_transfers_running", "Transfers accepted and not ended", lambda link: link.transfers),
    ("pdd_transfer_backlog_bytes", "Accepted by a target and not acknowledged yet", lambda link: link.backlog_bytes),
    ("pdd_transfer_goodput_bytes_per_second", "Measured; 0: not yet", lambda link: link.goodput_bytes_s),
)


class ReceiverState(Collector):
    """For relay and main."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("pdd_offers_parked", "Offers that wait for their admission", value=self._decoder.parked)


class WanTraffic(Collector):
    """For main, which is behind the slow link: whatever crosses that on its account."""

    def __init__(self, decoder: Decoder, kv_bytes: Mapping[str, int], published: PublisherCounts | None) -> None:
        self._decoder = decoder
        self._kv_bytes = kv_bytes
        self._published = published

    def collect(self) -> Iterator[Metric]:
        traffic, published = self._decoder.traffic, self._published
        labels = ["kind", "direction", "outcome"]
        family = CounterMetricFamily("pdd_wan_bytes", "Bytes between main and the other site", labels=labels)
        for outcome in ("used", "cached", "dropped"):
            family.add_metric(["kv", "in", outcome], self._kv_bytes[outcome])
        family.add_metric(["tokens", "in", "used"], traffic.read_bytes)
        family.add_metric(["tokens", "out", "used"], traffic.written_bytes)
        family.add_metric(["catalog", "out", "used"], 0 if published is None else published.sent_bytes)
        yield family


def _steps(steps: StepTally) -> Iterator[Metric]:
    yield _histogram("pdd_engine_step_seconds", "Duration of steps", steps.duration_s)
    yield _histogram("pdd_engine_step_sequences", "Sequences in a step", steps.sequences)
    computed, sampled = steps.computed_tokens, steps.sampled_tokens
    yield CounterMetricFamily("pdd_engine_computed_tokens", "Tokens computed, known or sampled", value=computed)
    yield CounterMetricFamily("pdd_engine_sampled_tokens", "Tokens sampled", value=sampled)


def _histogram(name: str, text: str, found: Distribution) -> HistogramMetricFamily:
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, in_bucket in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
        count += in_bucket
        buckets.append((bound, count))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=found.total)


def _labelled(family: GaugeMetricFamily, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    for label, value in values:
        family.add_metric([label], value)
    return family
