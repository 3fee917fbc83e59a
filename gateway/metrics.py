"""The gateway's Prometheus metrics.

`GatewayMetrics` is called by `answer` (what happens to a generation) and by both APIs (how a request ended), `MeshMetrics` by the
mesh. They own the metric objects, in the registry that they are given, and read no clock: durations come as arguments (seconds).
All of them work for several workers that share a folder (`merged`). Names, units and meanings are in docs/metrics.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from gateway.generation import MeshErrorCode, Timeline, Usage
from gateway.routing.plan import Plan
from gateway.tally import CounterTally, HistogramTally
from pdd.catalog.base import Role

# Decode steps take 1..100 ms, a stall at a handoff up to seconds.
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_QUEUE_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_HIT_BUCKETS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_ROUND_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
_BANDS = ("0-5%", "5-25%", "25-50%", "50-75%", "75-90%", "90-95%", "95-100%")  # as _HIT_BUCKETS ends them

_CANCELLED = frozenset({"499", "CANCELLED"})  # what APIs say where the client left, by HTTP and by gRPC


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = Counter(
            "pdd_requests", "Requests that ended: ok, cancelled or error", ["route", "status", "outcome"], registry=registry
        )
        self._running = _sum_gauge(registry, "pdd_requests_running", "Requests being answered", ["route"])
        self._waiting = _sum_gauge(registry, "pdd_requests_waiting", "Requests without a plan yet: all relays are full")
        self.waiting = self._waiting.track_inprogress  # as a context: while a request has no plan
        self._duration = _histogram(registry, "pdd_request_duration_seconds", "Arrival to end", _LONG_BUCKETS_S, ["route"])
        self._ttft = _histogram(registry, "pdd_time_to_first_token_seconds", "Arrival to the first token", _LONG_BUCKETS_S)
        self._itl = HistogramTally(
            "pdd_inter_token_latency_seconds", "Between two deliveries of one request's tokens", _GAP_BUCKETS_S
        )
        self._output = CounterTally("pdd_output_tokens", "Output tokens by the instance that made them", "source")
        registry.register(self._itl)
        registry.register(self._output)
        # With every token, and so not through a method of this class.
        self.next_tokens = self._itl.observe  # seconds since the last ones of the same answer
        self.tokens = self._output.add  # (source, how many)
        self._generations = Counter(
            "pdd_generations", "Generations that ended, by pipeline and handoff mode", ["pipeline", "mode"], registry=registry
        )
        self._prompt = Counter("pdd_prompt_tokens", "Prompt tokens of generations that ended", registry=registry)
        self._cached = Counter("pdd_cached_prompt_tokens", "Those that prefill took from cache", registry=registry)
        self._main_cached = Counter("pdd_main_cached_prompt_tokens", "Those that main had cached", registry=registry)
        self._hit_gap = Counter(
            "pdd_prefix_hit_gap_tokens", "Those that one of the two had cached and the other not", ["ahead"], registry=registry
        )
        self._wan = Counter("pdd_wan_kv_bytes", "Bytes of KV that crossed to a main", registry=registry)
        self._errors = Counter("pdd_mesh_errors", "Generations that the mesh could not finish", ["code"], registry=registry)

    def request_began(self, route: str) -> None:
        self._running.labels(route).inc()

    def request_ended(self, route: str, status: str, duration_s: float) -> None:
        """`status` is an HTTP status, for a gRPC call its status code's name."""
        self._running.labels(route).dec()
        self._requests.labels(route, status, _outcome(status)).inc()
        self._duration.labels(route).observe(duration_s)

    def first_tokens(self, since_arrival_s: float) -> None:
        self._ttft.observe(since_arrival_s)

    def generation_ended(self, usage: Usage, timeline: Timeline) -> None:
        self._generations.labels(timeline.pipeline, timeline.handoff or "none").inc()
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._main_cached.inc(timeline.main_cached_tokens)
        gap_tokens = usage.cached_tokens - timeline.main_cached_tokens
        self._hit_gap.labels("prefill" if gap_tokens > 0 else "main").inc(abs(gap_tokens))
        self._wan.inc(timeline.wan_kv_bytes)

    def generation_failed(self, code: MeshErrorCode) -> None:
        self._errors.labels(code.value).inc()


class MeshMetrics:
    """A MeshObserver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._plans = Counter(
            "pdd_plans", "Requests by pipeline and why it was chosen", ["pipeline", "reason"], registry=registry
        )
        self._hit = _histogram(
            registry, "pdd_main_prefix_hit_ratio", "Share of a prompt that main holds, as the catalog says", _HIT_BUCKETS
        )
        self._bands = Counter(
            "pdd_requests_by_hit_band", "Requests by what role has of their prompt", ["role", "band"], registry=registry
        )
        self._queue = _histogram(
            registry, "pdd_relay_queue_seconds", "What a request waited for a relay before it had its plan", _QUEUE_BUCKETS_S
        )
        self._joined = Counter("pdd_decoders_joined", "Decoders taken in when a plan proved wrong", ["role"], registry=registry)
        self._placed = Counter("pdd_placements", "Requests given to an instance", ["role", "instance_id"], registry=registry)
        self._gap = _histogram(registry, "pdd_handoff_gap_seconds", "The relay's last token to main's first", _GAP_BUCKETS_S)
        self._user_gap = _histogram(
            registry, "pdd_handoff_user_gap_seconds", "Longest wait around the switch that playout left", _GAP_BUCKETS_S
        )
        self._eager = _histogram(registry, "pdd_eager_tokens", "Tokens shown before main took over", _TOKEN_BUCKETS)
        self._extended = _histogram(
            registry, "pdd_extend_tokens", "Tokens that the extends of one handoff brought to main", _TOKEN_BUCKETS
        )
        self._rounds = _histogram(registry, "pdd_extend_rounds", "Extends of one handoff", _ROUND_BUCKETS)
        self._scored = Counter(
            "pdd_scored_tokens", "A relay's tokens that main's own sampler was asked for too", registry=registry
        )
        self._agreed = Counter("pdd_agreed_tokens", "Those of them that it chose as well", registry=registry)
        self._dropped = Counter("pdd_events_dropped", "Events for handles that are closed", ["instance_id"], registry=registry)
        self._unanswered = Counter("pdd_aborts_unanswered", "Aborts not answered in time", ["instance_id"], registry=registry)
        # Of several workers each has a stream of its own.
        self._connected = Gauge(
            "pdd_instance_connected",
            "1 while the stream to it is up",
            ["instance_id"],
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._synced = _AskedGauge("pdd_catalog_synced", "1 while prefix hits are judged by all that is published")
        registry.register(self._synced)

    def watch_catalog(self, synced: Callable[[], bool]) -> None:
        """Have `synced` asked whenever the metrics are read."""
        self._synced.ask = synced

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        self._plans.labels(plan.pipeline.value, plan.reason_code.value).inc()
        self._hit.observe(plan.main_hit_tokens / prompt_tokens)
        for role, hit_tokens in ((Role.PREFILL, plan.prefill_hit_tokens), (Role.MAIN, plan.main_hit_tokens)):
            self._bands.labels(role.value, _band(hit_tokens / prompt_tokens)).inc()
        for role, registration in plan.instances().items():
            self._placed.labels(role.value, registration.instance.id).inc()

    def queued(self, waited_s: float) -> None:
        self._queue.observe(waited_s)

    def joined(self, role: Role) -> None:
        self._joined.labels(role.value).inc()

    def handoff_done(self, timeline: Timeline) -> None:
        self._gap.observe(timeline.switch_gap_s)
        self._user_gap.observe(timeline.user_gap_s)
        self._eager.observe(timeline.eager_tokens)
        extends = [span.tokens for span in timeline.spans if span.name == "extend"]
        self._extended.observe(sum(extends))
        self._rounds.observe(len(extends))

    def tokens_scored(self, scored: int, agreed: int) -> None:
        self._scored.inc(scored)
        self._agreed.inc(agreed)

    def events_dropped(self, instance_id: str, count: int) -> None:
        self._dropped.labels(instance_id).inc(count)

    def abort_unanswered(self, instance_id: str) -> None:
        self._unanswered.labels(instance_id).inc()

    def link_changed(self, instance_id: str, connected: bool) -> None:
        self._connected.labels(instance_id).set(connected)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...], labels: list[str] | None = None
) -> Histogram:
    return Histogram(name, text, labels or (), buckets=buckets, registry=registry)


def _sum_gauge(registry: CollectorRegistry, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
    return Gauge(name, text, labels, registry=registry, multiprocess_mode="livesum")


def _outcome(status: str) -> str:
    if status in _CANCELLED:
        return "cancelled"
    return "ok" if status == "OK" or status.startswith("2") else "error"


def _band(hit_ratio: float) -> str:
    return _BANDS[min(bisect_left(_HIT_BUCKETS, hit_ratio), len(_BANDS) - 1)]


class _AskedGauge(Gauge):
    """A gauge without labels that is looked up whenever it is collected. 0 until there is somebody to ask."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text, registry=None, multiprocess_mode="livemin")
        self.ask: Callable[[], float] = lambda: 0.0

    def collect(self) -> Iterable[Metric]:
        self.set(self.ask())
        return super().collect()
