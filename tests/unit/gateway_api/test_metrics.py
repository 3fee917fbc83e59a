from prometheus_client import CollectorRegistry

from gateway.generation import Span, Timeline, Usage
from gateway.mesh.observer import MeshObserver
from gateway.metrics import GatewayMetrics, MeshMetrics


def test_a_handoff_tells_its_gaps_eager_tokens_and_rounds() -> None:
    registry = CollectorRegistry()
    observer: MeshObserver = MeshMetrics(registry)
    spans = (Span("relay", "relay-0", 0, 1), Span("extend", "main-0", 0.1, 0.2, 8), Span("extend", "main-0", 0.2, 0.3, 2))
    observer.handoff_done(Timeline("relay", "catch_up", spans, switch_gap_s=0.04, eager_tokens=10, user_gap_s=0.02))
    assert registry.get_sample_value("pdd_handoff_gap_seconds_sum") == 0.04
    assert registry.get_sample_value("pdd_handoff_user_gap_seconds_sum") == 0.02
    assert registry.get_sample_value("pdd_eager_tokens_sum") == 10
    assert registry.get_sample_value("pdd_extend_rounds_sum") == 2


def test_agreement_is_two_counters() -> None:
    registry = CollectorRegistry()
    observer: MeshObserver = MeshMetrics(registry)
    observer.tokens_scored(10, 10)
    observer.tokens_scored(5, 3)
    assert registry.get_sample_value("pdd_scored_tokens_total") == 15
    assert registry.get_sample_value("pdd_agreed_tokens_total") == 13


def test_connections_are_known_by_instance() -> None:
    registry = CollectorRegistry()
    observer = MeshMetrics(registry)
    observer.link_changed("main-0", True)
    observer.link_changed("main-1", True)
    observer.link_changed("main-0", False)
    connected = {
        instance: registry.get_sample_value("pdd_instance_connected", {"instance": instance}) for instance in ("main-0", "main-1")
    }
    assert connected == {"main-0": 0, "main-1": 1}


def test_the_catalog_is_synced_or_not_whenever_the_metrics_are_read() -> None:
    registry, synced = CollectorRegistry(), [False, True]
    metrics = MeshMetrics(registry)
    assert registry.get_sample_value("pdd_catalog_synced") == 0
    metrics.watch_catalog(lambda: synced.pop())
    assert [registry.get_sample_value("pdd_catalog_synced") for _ in range(2)] == [1, 0]


def test_a_request_waits_until_it_has_a_plan() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    with metrics.waiting():
        assert registry.get_sample_value("pdd_requests_waiting") == 1
    assert registry.get_sample_value("pdd_requests_waiting") == 0


def test_generations_are_counted_by_pipeline_and_mode() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.generation_ended(Usage(10, 5, 3), Timeline("direct", wan_kv_bytes=7))
    metrics.generation_ended(Usage(10, 5), Timeline("relay", "one_shot", wan_kv_bytes=8))
    assert registry.get_sample_value("pdd_generations_total", {"pipeline": "direct", "mode": "none"}) == 1
    assert registry.get_sample_value("pdd_generations_total", {"pipeline": "relay", "mode": "one_shot"}) == 1
    assert registry.get_sample_value("pdd_cached_prompt_tokens_total") == 3
    assert registry.get_sample_value("pdd_wan_kv_bytes_total") == 15


def test_two_gateways_in_one_process_do_not_share_metrics() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    GatewayMetrics(first).tokens("relay-0", 5)
    GatewayMetrics(second)
    assert second.get_sample_value("pdd_output_tokens_total", {"source": "relay-0"}) is None
