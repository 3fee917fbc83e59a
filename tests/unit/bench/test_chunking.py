"""A prefill's throughput over the hit rate has no dips, in virtual time; where tails run alone it has."""

from __future__ import annotations

from bench.chunking import NaiveEngine, Setting, computed_dips, prompt_dips, sweep
from pdd.engine.batch import BatchEngine

SHORT = Setting(steps=40)


def test_throughput_has_no_dip_at_any_hit_rate() -> None:
    points = sweep(BatchEngine, SHORT)
    assert len(points) == 20
    assert max(computed_dips(points)) < 0.03
    assert max(prompt_dips(points)) < 0.03


def test_last_chunks_that_run_alone_make_dips() -> None:
    points = sweep(NaiveEngine, SHORT, [0.35, 0.40, 0.45, 0.65, 0.70, 0.75])
    for around in (points[:3], points[3:]):
        assert computed_dips(around)[0] > 0.05
        assert prompt_dips(around)[0] > 0.05
