from __future__ import annotations

from gateway.generation import End, Timeline, Usage
from pdd.engine.base import FinishReason
from virtual.workloads.percentile import percentile
from virtual.workloads.record import Record
from virtual.workloads.report import HEAD, error_counts, lines


def record(pipeline: str, ttft_s: float) -> Record:
    timeline = Timeline(pipeline, eager_tokens=5, wan_kv_bytes=500_000_000, main_cached_tokens=50)
    end = End(FinishReason.LENGTH, Usage(100, 10, cached_tokens=80), timeline)
    return Record(0, 0, 0.0, 1.0, 100, 10, 10, ttft_s, 0.03, 0.02, 0.04, 0.05, end)


def failed(code: str) -> Record:
    return Record(0, 0, 0.0, 1.0, 9999, 10, 0, 0.0, 0.0, 0.0, 0.0, 0.0, None, code)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, percent) for percent in (0, 20, 50, 90, 100)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert percentile([], 50) == 0.0


def test_each_pipeline_has_a_line_beside_that_of_all() -> None:
    table = lines([record("relay", 2.0), record("direct", 1.0), record("relay", 3.0), failed("overloaded")])
    assert [(line[0], line[1], line[2]) for line in table] == [("all", "4", "1"), ("direct", "1", "0"), ("relay", "2", "0")]
    assert all(len(line) == len(HEAD) for line in table)
    everything = dict(zip(HEAD[3:7], table[0][3:7], strict=True))
    assert everything == {"prompt": "100", "cached": "80.0%", "on main": "50.0%", "TTFT p50 s": "2.00"}
    assert table[0][-3:] == ("30", "50.0%", "1.50")


def test_a_run_without_answers_has_a_line_all_the_same() -> None:
    assert [line[0] for line in lines([])] == ["all"]


def test_errors_are_counted_by_code() -> None:
    assert error_counts([failed("peer_lost"), record("relay", 1.0), failed("overloaded"), failed("peer_lost")]) == {
        "overloaded": 1,
        "peer_lost": 2,
    }
