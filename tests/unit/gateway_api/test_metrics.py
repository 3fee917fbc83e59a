from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, values

from gateway.generation import Span, Timeline, Usage
from gateway.handoff.machine import Pipeline
from gateway.merged import FOLDER_VARIABLE, merged_registry
from gateway.mesh.observer import MeshObserver
from gateway.metrics import GatewayMetrics, MeshMetrics
from gateway.routing.plan import Plan, ReasonCode
from pdd.catalog.base import Role
from tests.unit.gateway.instances import registration


def test_a_handoff_tells_its_gaps_eager_tokens_and_rounds() -> None:
    registry = CollectorRegistry()
    observer: MeshObserver = MeshMetrics(registry)
    spans = (Span("relay", "relay-0", 0, 1), Span("extend", "main-0", 0.1, 0.2, 8), Span("extend", "main-0", 0.2, 0.3, 2))
    observer.handoff_done(Timeline("relay", "catch_up", spans, switch_gap_s=0.04, eager_tokens=10, user_gap_s=0.02))
    assert registry.get_sample_value("pdd_handoff_gap_seconds_sum") == 0.04
    assert registry.get_sample_value("pdd_handoff_user_gap_seconds_sum") == 0.02
    assert registry.get_sample_value("pdd_eager_tokens_sum") == 10
    assert registry.get_sample_value("pdd_extend_tokens_sum") == 10
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
        instance: registry.get_sample_value("pdd_instance_connected", {"instance_id": instance})
        for instance in ("main-0", "main-1")
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


def plan(prefill_hit_tokens: int, main_hit_tokens: int) -> Plan:
    prefill, relay, main = (registration(role) for role in (Role.PREFILL, Role.RELAY, Role.MAIN))
    hits = prefill_hit_tokens, main_hit_tokens
    return Plan(Pipeline.RELAY, prefill, relay, main, ReasonCode.LOW_HIT, "", 0, 0, 0.0, *hits, 10)


def test_requests_are_counted_in_seven_bands_of_what_prefill_and_main_have() -> None:
    registry = CollectorRegistry()
    metrics = MeshMetrics(registry)
    for hit in (0, 5, 6, 25, 50, 75, 90, 91, 95, 96, 100):
        metrics.planned(plan(0, hit), 100)

    def counts(role: str, bands: Sequence[str]) -> list[float | None]:
        labels = ({"role": role, "band": band} for band in bands)
        return [registry.get_sample_value("pdd_requests_by_hit_band_total", one) for one in labels]

    bands = ["0-5%", "5-25%", "25-50%", "50-75%", "75-90%", "90-95%", "95-100%"]
    assert counts("main", bands) == [2, 2, 1, 1, 1, 2, 2]
    assert counts("prefill", bands[:1]) == [11]


def test_the_gap_of_the_caches_says_which_is_ahead() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    for prefill, main in ((32, 16), (16, 64), (64, 64)):
        metrics.generation_ended(Usage(100, 5, prefill), Timeline("relay", main_cached_tokens=main))
    gaps = {
        ahead: registry.get_sample_value("pdd_prefix_hit_gap_tokens_total", {"ahead": ahead}) for ahead in ("prefill", "main")
    }
    assert gaps == {"prefill": 16, "main": 48}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("200", "ok"),
        ("OK", "ok"),
        ("499", "cancelled"),
        ("CANCELLED", "cancelled"),
        ("400", "error"),
        ("502", "error"),
        ("UNAVAILABLE", "error"),
        ("DEADLINE_EXCEEDED", "error"),
    ],
)
def test_a_client_that_left_is_no_error(status: str, outcome: str) -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.request_began("/v1/completions")
    metrics.request_ended("/v1/completions", status, 0.1)
    labels = {"route": "/v1/completions", "status": status, "outcome": outcome}
    assert registry.get_sample_value("pdd_requests_total", labels) == 1


async def test_workers_add_up_what_they_do_and_are_synced_and_connected_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)  # put back at the end
    async with AsyncExitStack() as stack:
        registries = []
        for number, synced in enumerate((True, False)):
            registry = await stack.enter_async_context(merged_registry(number, tmp_path))
            registries.append(registry)
            metrics, observer = GatewayMetrics(registry), MeshMetrics(registry)
            observer.watch_catalog(partial(bool, synced))
            observer.link_changed("main-0", True)
            observer.link_changed("main-1", synced)
            metrics.request_began("/v1/completions")
            registry.write_down()
        for registry in registries:
            assert registry.get_sample_value("pdd_requests_running", {"route": "/v1/completions"}) == 2
            assert registry.get_sample_value("pdd_catalog_synced") == 0
            connected = (registry.get_sample_value("pdd_instance_connected", {"instance_id": id}) for id in ("main-0", "main-1"))
            assert tuple(connected) == (1, 0)
