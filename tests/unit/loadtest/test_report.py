from __future__ import annotations

import pytest
from locust.stats import RequestStats

from loadtest.http_api import CHAT_ROUTE, COMPLETIONS_ROUTE
from loadtest.measures import ANSWER, CANCELLED, bucket_ms, record
from loadtest.page import values
from loadtest.report import counts
from loadtest.table import HEAD, pipeline_shares, rows, text
from tests.unit.loadtest.readings import reading


@pytest.fixture
def stats() -> RequestStats:
    """Two answers of agents over gRPC, one of which was handed over; of chats one that failed, and one that was left."""
    stats = RequestStats()
    handed_over = reading((0.1, "prefill-0"), (0.2, "relay-0"), (0.5, "main-0"), handed_over=True)
    alone = reading((0.3, "prefill-0"), (0.32, "main-0"), plan="pipeline=direct; code=high_hit")
    for found in (handed_over, alone):
        record(stats, "agents grpc", found)
        stats.log_request(ANSWER, "agents grpc", round(found.duration_s * 1000), found.tokens)
    stats.log_request(ANSWER, "chat http", 50, 0)
    stats.log_error(ANSWER, "chat http", "HTTP 429 overloaded")
    stats.entries[("chat http", CANCELLED)].log(70, 4)
    return stats


def test_a_row_has_the_answers_the_spread_of_their_times_and_their_tokens(stats: RequestStats) -> None:
    row = dict(zip(HEAD, rows(stats)[0], strict=True))
    assert row["users"] == "agents grpc"
    assert (row["answers"], row["errors"], row["cancelled"], row["tokens"]) == ("2", "0", "0", "5")
    assert (row["TTFT p50"], row["TTFT max"]) == ("300", "300")
    assert (row["gap p50"], row["gap max"]) == ("100", "300")
    assert row["handoff max"] == "300"


def test_errors_and_cancels_are_told_apart_and_what_was_not_seen_is_a_dash(stats: RequestStats) -> None:
    row = dict(zip(HEAD, rows(stats)[1], strict=True))
    assert (row["users"], row["answers"], row["errors"], row["cancelled"]) == ("chat http", "0", "1", "1")
    assert (row["TTFT p50"], row["handoff p50"], row["tok/s p50"]) == ("-", "-", "-")
    assert "error, 1 times: chat http: HTTP 429 overloaded" in text(stats)


def test_the_last_row_is_of_all(stats: RequestStats) -> None:
    row = dict(zip(HEAD, rows(stats)[-1], strict=True))
    assert (row["users"], row["answers"], row["errors"], row["cancelled"]) == ("all", "2", "1", "1")


def test_shares_are_those_of_the_whole_answers(stats: RequestStats) -> None:
    assert pipeline_shares(stats) == {"relay": (1, 0.5), "direct": (1, 0.5)}


def test_only_answers_count_as_requests_of_locusts(stats: RequestStats) -> None:
    assert stats.total.num_requests == 3


def test_locusts_counts_are_by_the_gateways_routes(stats: RequestStats) -> None:
    found = counts(stats)
    assert found.served == {CHAT_ROUTE: 0, COMPLETIONS_ROUTE: 0, "pdd.v1.Inference/Generate": 2}
    assert found.failed[CHAT_ROUTE] == found.cancelled[CHAT_ROUTE] == 1
    assert found.pipelines == {"relay": 1, "direct": 1}
    assert (found.first_tokens, found.tokens) == (2, 5)


def test_the_pages_tables_have_a_value_for_each_column(stats: RequestStats) -> None:
    mesh, pipelines = values(stats)
    assert [set(row) for row in mesh["data"]] == [set(HEAD)] * 3  # type: ignore[attr-defined]
    assert {"pipeline": "relay", "answers": 1, "share": "50.0%"} in pipelines["data"]  # type: ignore[operator]


@pytest.mark.parametrize(("exact", "kept"), [(0.04, 0.0), (8.44, 8.4), (42.4, 42), (147.0, 150), (58_760.0, 59_000)])
def test_times_are_kept_with_two_digits(exact: float, kept: float) -> None:
    assert bucket_ms(exact) == kept
