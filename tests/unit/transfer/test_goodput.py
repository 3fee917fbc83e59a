from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.transfer.goodput import LinkMeter

RATE = 10_000_000.0


@dataclass(frozen=True)
class Transfer:
    ready_bytes: int = 0


ONE, OTHER = Transfer(), Transfer(1)


def run(meter: LinkMeter, rate: float, start_s: float, seconds: float, step_s: float = 0.05) -> float:
    """A backlog that the link works off at `rate`, acknowledged every `step_s`. Returns when it ends."""
    now_s = start_s
    while now_s < start_s + seconds:
        now_s += step_s
        size = round(rate * step_s)
        meter.accepted(ONE, size)
        meter.sent(size, now_s - step_s)
        meter.acknowledged(size, now_s)
    return now_s


def busy(meter: LinkMeter, now_s: float = 0.0) -> LinkMeter:
    """Something that is in flight for the whole test."""
    meter.accepted(ONE, 1)
    meter.sent(1, now_s)
    return meter


def test_nothing_is_known_of_a_link_that_nothing_has_crossed() -> None:
    meter = LinkMeter()
    assert (meter.goodput(5.0), meter.backlog_bytes) == (None, 0)


@pytest.mark.parametrize("step_s", [0.01, 0.05, 0.3, 1.0])
def test_a_steady_link_has_its_rate_however_rarely_it_acknowledges(step_s: float) -> None:
    meter = busy(LinkMeter())
    now_s = run(meter, RATE, 0.0, 3.0, step_s)
    assert meter.goodput(now_s) == pytest.approx(RATE, rel=0.01)


def test_a_round_trip_before_the_first_acknowledgement_is_not_held_against_the_link() -> None:
    meter = LinkMeter()
    meter.accepted(ONE, 2_000_000)
    meter.sent(2_000_000, 0.0)
    meter.acknowledged(1_000_000, 0.5)
    meter.acknowledged(1_000_000, 0.6)
    assert meter.goodput(0.6) == pytest.approx(RATE)


def test_acknowledgements_that_come_together_are_no_figure() -> None:
    meter = busy(LinkMeter())
    for now_s in (0.1, 0.1, 0.10001):
        meter.accepted(ONE, 10**6)
        meter.sent(10**6, 0.0)
        meter.acknowledged(10**6, now_s)
    assert meter.goodput(0.2) is None


def test_idle_time_changes_nothing() -> None:
    meter = LinkMeter()
    meter.accepted(ONE, 2_000_000)
    meter.sent(2_000_000, 0.0)
    meter.acknowledged(1_000_000, 0.1)
    meter.acknowledged(1_000_000, 0.2)
    assert meter.goodput(100.0) == meter.goodput(0.2) == pytest.approx(RATE)


def test_a_link_that_falls_to_a_tenth_is_seen_within_a_second() -> None:
    meter = busy(LinkMeter())
    now_s = run(meter, RATE, 0.0, 10.0)
    assert meter.goodput(run(meter, RATE / 10, now_s, 1.0)) == pytest.approx(RATE / 10, rel=1.0)


def test_a_link_that_stops_is_seen_within_a_second_without_any_acknowledgement() -> None:
    meter = busy(LinkMeter())
    now_s = run(meter, RATE, 0.0, 10.0)
    assert meter.goodput(now_s + 0.05) == pytest.approx(RATE, rel=0.01)  # the next acknowledgement is due now
    stopped = meter.goodput(now_s + 1.0)
    assert stopped is not None
    assert 0 < stopped < RATE / 5


def test_a_slow_link_that_acknowledges_now_and_then_keeps_its_rate_between() -> None:
    meter = busy(LinkMeter())
    now_s = run(meter, RATE, 0.0, 5.0, step_s=1.0)
    for waited_s in (0.1, 0.5, 0.9):
        assert meter.goodput(now_s + waited_s) == pytest.approx(RATE, rel=0.01)


def test_the_backlog_is_what_was_accepted_and_not_acknowledged() -> None:
    meter = LinkMeter()
    meter.accepted(ONE, 100)
    meter.accepted(OTHER, 50)
    meter.sent(60, 0.0)
    assert meter.backlog_bytes == 150
    meter.acknowledged(40, 1.0)
    assert meter.backlog_bytes == 110
    meter.ended(ONE, 60, 20)
    assert (meter.backlog_bytes, meter.transfers) == (50, [OTHER])


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 3)), min_size=1, max_size=20))
def test_the_figure_stays_between_nothing_and_the_fastest_acknowledgement(steps: list[tuple[int, float]]) -> None:
    meter, now_s, fastest = busy(LinkMeter()), 0.0, 0.0
    for size, passed_s in steps:
        meter.accepted(ONE, size)
        meter.sent(size, now_s)
        now_s += passed_s
        meter.acknowledged(size, now_s)
        fastest = max(fastest, size / passed_s if passed_s else float("inf"))
        figure = meter.goodput(now_s + passed_s)
        assert figure is None or 0 <= figure <= fastest * 1.001
