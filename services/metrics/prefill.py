"""What prefill tells of its prompts and transfers, as they end.

Made by the entry point, told by the jobs. Owns the metric objects, in a registry of its own, and reads no clock.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from pdd.engine.base import Prefilled
from pdd.transfer.outbound import TransferReport
from services.metrics.buckets import LONG_S, WAIT_S
from services.prefill.observer import TransferOutcome


class PrefillMetrics:
    """A PrefillObserver."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._queue = Histogram(
            "pdd_prefill_queue_seconds", "From a prompt's arrival, without its computing", buckets=WAIT_S, registry=registry
        )
        self._compute = Histogram(
            "pdd_prefill_compute_seconds", "From a prompt's first chunk to token 0", buckets=LONG_S, registry=registry
        )
        self._queried = Counter("pdd_prefix_cache_queried_tokens", "Tokens of prompts looked up in the cache", registry=registry)
        self._hit = Counter("pdd_prefix_cache_hit_tokens", "Those of them that were found", registry=registry)
        self._transfers = Counter(
            "pdd_transfers", "Transfers that ended", ["target", "target_role", "outcome"], registry=registry
        )
        self._sent = Counter(
            "pdd_transfer_sent_bytes",
            "KV put on the link by transfers that ended",
            ["target", "target_role", "outcome"],
            registry=registry,
        )
        self._duration = Histogram(
            "pdd_transfer_seconds", "From an offer to its commit", ["target"], buckets=LONG_S, registry=registry
        )
        self._behind = Histogram(
            "pdd_transfer_behind_seconds",
            "From a prompt's last block being made to the receiver having all",
            ["target"],
            buckets=WAIT_S,
            registry=registry,
        )

    def prefilled(self, event: Prefilled, prompt_tokens: int, waited_s: float) -> None:
        self._queue.observe(waited_s)
        self._compute.observe(event.compute_s)
        self._queried.inc(prompt_tokens)
        self._hit.inc(prompt_tokens - event.computed_tokens)

    def committed(self, target: str, report: TransferReport, behind_s: float) -> None:
        self._duration.labels(target).observe(report.offer_to_commit_s)
        self._behind.labels(target).observe(behind_s)

    def transfer_ended(self, target: str, role: str, outcome: TransferOutcome, sent_bytes: int) -> None:
        self._transfers.labels(target, role, outcome.value).inc()
        self._sent.labels(target, role, outcome.value).inc(sent_bytes)
