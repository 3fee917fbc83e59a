from __future__ import annotations

from dataclasses import replace

from loadtest.counters import Counts, compare, parse

ROUTES = ("/v1/completions", "pdd.v1.Inference/Generate")
METRICS = """
# TYPE pdd_requests_total counter
pdd_requests_total{route="/v1/completions",status="200",outcome="ok"} 7.0
pdd_requests_total{route="/v1/completions",status="499",outcome="cancelled"} 2.0
pdd_requests_total{route="/v1/completions",status="429",outcome="error"} 1.0
pdd_requests_total{route="/metrics",status="200",outcome="ok"} 50.0
pdd_requests_total{route="pdd.v1.Inference/Generate",status="OK",outcome="ok"} 3.0
pdd_requests_total{route="pdd.v1.Inference/Generate",status="CANCELLED",outcome="cancelled"} 1.0
# TYPE pdd_plans_total counter
pdd_plans_total{pipeline="relay",reason="low_hit"} 4.0
pdd_plans_total{pipeline="relay",reason="forced"} 2.0
# TYPE pdd_time_to_first_token_seconds histogram
pdd_time_to_first_token_seconds_bucket{le="+Inf"} 10.0
pdd_time_to_first_token_seconds_count 10.0
pdd_time_to_first_token_seconds_sum 1.5
# TYPE pdd_output_tokens_total counter
pdd_output_tokens_total{source="relay-0"} 30.0
pdd_output_tokens_total{source="main-0"} 60.0
"""
NOTHING = Counts({}, {}, {}, {}, 0, 0)


def counts(served: int, failed: int = 0, cancelled: int = 0, tokens: int = 0) -> Counts:
    route = ROUTES[0]
    return Counts({route: served}, {route: failed}, {route: cancelled}, {"relay": served}, served, tokens)


def agreed(locust: Counts, gateway: Counts) -> bool:
    return all(line.agrees for line in compare(locust, gateway))


def test_a_gateways_metrics_are_counted_by_route_and_outcome() -> None:
    found = parse(METRICS, ROUTES)
    assert found.served == {ROUTES[0]: 7, ROUTES[1]: 3}
    assert found.failed == {ROUTES[0]: 1, ROUTES[1]: 0}
    assert found.cancelled == {ROUTES[0]: 2, ROUTES[1]: 1}
    assert found.pipelines == {"relay": 6}
    assert (found.first_tokens, found.tokens) == (10, 90)


def test_what_was_counted_before_the_test_is_left_out() -> None:
    found = parse(METRICS, ROUTES)
    assert found.since(NOTHING) == found
    assert set(found.since(found).served.values()) == {0}


def test_equal_counts_agree_and_any_other_number_does_not() -> None:
    assert agreed(counts(5, tokens=50), counts(5, tokens=50))
    assert not agreed(counts(5, tokens=50), counts(6, tokens=50))
    assert not agreed(counts(5, tokens=50), counts(5, tokens=51))
    assert not agreed(counts(5, failed=1), counts(5))
    assert not agreed(counts(5), counts(5, cancelled=1))
    assert not agreed(counts(5), replace(counts(5), pipelines={"direct": 5}))


def test_a_cancelled_request_may_have_been_whole_left_or_never_read_at_the_gateway() -> None:
    locust = counts(5, cancelled=2, tokens=50)
    assert agreed(locust, counts(5, cancelled=2, tokens=55))
    assert agreed(locust, counts(6, cancelled=1, tokens=60))
    assert agreed(locust, counts(5, cancelled=1, tokens=50))
    assert not agreed(locust, counts(6, cancelled=2, tokens=60))
    assert not agreed(locust, counts(4, cancelled=3, tokens=50))
