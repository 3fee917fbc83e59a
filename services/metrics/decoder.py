"""What relay and main tell of their transfers and sequences, as it happens.

Made by the entry points, told by the decoder and its receiver. Owns the metric objects, in a registry of its own, and reads no
clock.
"""

from __future__ import annotations

from collections import Counter as Sums

from prometheus_client import CollectorRegistry, Counter, Histogram

from pdd.engine.base import Extended
from services.metrics.buckets import WAIT_S


class DecoderMetrics:
    """A DecoderObserver."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.kv_bytes: Sums[str] = Sums()  # that came, by what became of them: used, cached or dropped
        self._slot = Histogram(
            "pdd_slot_wait_seconds",
            "From a sequence's first ids to their being computed, without computing",
            buckets=WAIT_S,
            registry=registry,
        )
        self._offer = Histogram(
            "pdd_offer_wait_seconds", "From a transfer's start to Want, at the receiver", buckets=WAIT_S, registry=registry
        )
        self._queried = Counter("pdd_prefix_cache_queried_tokens", "Tokens of prompts looked up in the cache", registry=registry)
        self._hit = Counter("pdd_prefix_cache_hit_tokens", "Those of them that were found", registry=registry)
        self._extends = Counter("pdd_extends", "Extends computed", registry=registry)
        self._extended = Counter("pdd_extend_computed_tokens", "Tokens that extends computed", registry=registry)
        self._extending = Counter("pdd_extend_compute_seconds", "Engine time of steps that computed extends", registry=registry)

    def granted(self, waited_s: float, cached_tokens: int, missing_tokens: int) -> None:
        self._offer.observe(waited_s)
        self._queried.inc(cached_tokens + missing_tokens)
        self._hit.inc(cached_tokens)

    def received(self, committed: bool, blocks_bytes: int, kept_bytes: int) -> None:
        if committed:
            self.kv_bytes["used"] += blocks_bytes
        else:
            self.kv_bytes["cached"] += kept_bytes
            self.kv_bytes["dropped"] += blocks_bytes - kept_bytes

    def slot_taken(self, waited_s: float) -> None:
        self._slot.observe(waited_s)

    def extended(self, event: Extended) -> None:
        self._extends.inc()
        self._extended.inc(event.computed_tokens)
        self._extending.inc(event.compute_s)
