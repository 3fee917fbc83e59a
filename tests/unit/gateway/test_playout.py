"""What a user sees of a relayed answer, token by token, for tokens that arrive at given times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import Tokens
from gateway.playout import STRETCH, Playout, Stage
from pdd.catalog.base import Role
from pdd.sampling import TokenLogprobs

P, RLD, MD = Role.PREFILL, Role.RELAY, Role.MAIN
INTERVAL_S, ROUND_TRIP_S = 0.025, 0.04
LEAD = 3  # ceil(40 / 25) + 1


class Watched:
    """A playout with a clock and a timer that keeps time, and what came out of it."""

    def __init__(self, round_trip_s: float = ROUND_TRIP_S, interval_s: float = INTERVAL_S) -> None:
        self.playout = Playout(round_trip_s, interval_s)
        self.now_s = 0.0
        self.made = 0
        self.lateness_s = 0.0  # of the timer
        self.shown: list[tuple[float, int]] = []  # (when, index)

    def until(self, time_s: float) -> None:
        while (due_s := self.playout.next_due_s) is not None and due_s + self.lateness_s <= time_s:
            assert due_s + self.lateness_s >= self.now_s
            self.now_s = due_s + self.lateness_s
            self._see(self.playout.due(self.now_s))
        self.now_s = time_s

    def arrive(self, role: Role, time_s: float, count: int = 1) -> None:
        self.until(time_s)
        ids = tuple(range(100 + self.made, 100 + self.made + count))
        tokens = Tokens(self.made, ids, role.value, tuple(TokenLogprobs(-float(one), ()) for one in ids))
        self.made += count
        self._see(self.playout.arrive(tokens, role, time_s))

    def relay_at(self, times_s: Iterable[float]) -> None:
        for time_s in times_s:
            self.arrive(RLD, time_s)

    def flush(self) -> None:
        self._see(self.playout.flush(self.now_s))

    def gaps(self) -> list[float]:
        return [after - before for (before, _), (after, _) in pairwise(self.shown)]

    @property
    def shown_after_index_0(self) -> int:
        return len(self.shown) - 1

    def _see(self, out: Iterable[Tokens]) -> None:
        for tokens in out:
            for place, token in enumerate(tokens.tokens):
                index = len(self.shown)
                assert (tokens.first_index + place, token) == (index, 100 + index)
                assert tokens.logprobs[place].logprob == -(100.0 + index)
                self.shown.append((self.now_s, index))


def relayed(tokens: int, start_s: float = 0.1, interval_s: float = INTERVAL_S) -> Watched:
    """Index 0 at time 0 and then so many tokens of the relay, evenly."""
    watched = Watched(interval_s=interval_s)
    watched.arrive(P, 0.0)
    watched.relay_at(start_s + number * interval_s for number in range(tokens))
    return watched


def test_the_first_tokens_go_out_at_once() -> None:
    watched = relayed(2)
    assert watched.shown == [(0.0, 0), (0.1, 1)]
    watched.until(1.0)
    assert watched.shown[2][0] == pytest.approx(0.1 + STRETCH * INTERVAL_S)


def test_the_lead_is_built_by_going_a_tenth_slower() -> None:
    watched = relayed(60)
    assert watched.playout.stage is Stage.HOLDING
    assert watched.playout.in_hand == LEAD
    assert max(watched.gaps()[1:]) <= STRETCH * INTERVAL_S + 1e-9
    assert watched.playout.next_due_s is None  # no timer while nothing happens


def test_the_switch_is_not_seen_behind_a_lead() -> None:
    watched = relayed(60)
    stopped_s = watched.now_s
    watched.playout.switch()
    for number in range(10):
        watched.arrive(MD, stopped_s + ROUND_TRIP_S + (1.5 + number) * INTERVAL_S)
    assert watched.playout.stage is Stage.DONE
    assert watched.playout.gap_s <= STRETCH * INTERVAL_S + 1e-9
    assert max(watched.gaps()[1:]) <= STRETCH * INTERVAL_S + 1e-9
    assert watched.shown_after_index_0 == 70


def test_tokens_after_the_stop_was_sent_join_the_lead() -> None:
    watched = relayed(60)
    watched.playout.switch()
    watched.arrive(RLD, watched.now_s + INTERVAL_S)
    assert watched.playout.in_hand == LEAD + 1


def test_a_switch_without_a_lead_shows_and_is_measured() -> None:
    watched = relayed(1)
    watched.playout.switch()
    watched.arrive(MD, 0.2)
    assert watched.playout.gap_s == pytest.approx(0.1)
    assert watched.shown[-1] == (0.2, 2)


def test_what_is_in_hand_is_spread_over_the_time_that_the_switch_takes() -> None:
    watched = Watched(round_trip_s=0.2)
    watched.arrive(P, 0.0)
    watched.arrive(RLD, 0.1)
    watched.arrive(RLD, 0.101, count=2)
    assert watched.playout.in_hand == 2
    watched.playout.switch()
    watched.arrive(MD, 0.302)
    assert watched.playout.gap_s == pytest.approx((0.302 - 0.1) / 3, rel=0.01)  # three even ones


def test_a_switch_that_takes_longer_than_the_lead_lasts_shows_the_rest() -> None:
    watched = relayed(60)
    stopped_s = watched.now_s
    watched.playout.switch()
    watched.arrive(MD, stopped_s + 0.5)
    assert watched.playout.gap_s == pytest.approx(0.5 - LEAD * STRETCH * INTERVAL_S)


def test_what_is_left_when_main_comes_early_goes_out_faster_and_soon_nothing_is_held() -> None:
    watched = relayed(60)
    stopped_s = watched.now_s
    watched.playout.switch()
    for number in range(8):
        watched.arrive(MD, stopped_s + 0.005 + number * INTERVAL_S)
    assert watched.playout.stage is Stage.DONE
    watched.arrive(MD, watched.now_s + 1.0, count=5)
    assert watched.shown[-1] == (watched.now_s, watched.made - 1)


def test_a_main_much_faster_than_the_relay_is_not_held_back() -> None:
    watched = relayed(60)
    stopped_s = watched.now_s
    watched.playout.switch()
    held = []
    for number in range(50):
        watched.arrive(MD, stopped_s + 0.03 + number * 0.001)
        held.append(watched.playout.in_hand)
    assert held == sorted(held, reverse=True)
    assert watched.playout.stage is Stage.DONE


@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 40])
def test_the_end_plays_everything_at_once(tokens: int) -> None:
    watched = relayed(tokens)
    watched.flush()
    assert watched.shown_after_index_0 == tokens
    assert watched.playout.done
    assert watched.playout.in_hand == 0


def test_the_lead_follows_the_relays_measured_interval() -> None:
    watched = Watched(interval_s=0.2)
    watched.arrive(P, 0.0)
    watched.relay_at(0.1 + number * 0.011 for number in range(120))
    assert watched.playout.in_hand == 5  # ceil(40 / 11) + 1


def test_a_lead_that_is_enough_is_not_changed_for_a_little() -> None:
    watched = relayed(60)
    watched.relay_at(watched.now_s + (1 + number) * 0.045 for number in range(40))  # ceil(40 / 45) + 1 would be 2
    assert watched.playout.in_hand == LEAD


def test_the_lead_has_a_bound() -> None:
    assert Playout(round_trip_s=10.0, interval_s=INTERVAL_S).lead == 21  # half a second
    assert Playout(round_trip_s=10.0, interval_s=0.0).lead == 501


def test_a_burst_is_held_up_to_the_lead() -> None:
    watched = relayed(60)
    watched.arrive(RLD, watched.now_s + INTERVAL_S, count=10)
    assert watched.playout.in_hand == LEAD


def test_a_late_timer_delays_one_token_and_not_those_after_it() -> None:
    punctual, late = relayed(0), relayed(0)
    late.lateness_s = 0.01
    for watched in (punctual, late):
        watched.relay_at(0.1 + number * INTERVAL_S for number in range(20))
        watched.until(2.0)
    delays = [after - before for (before, _), (after, _) in zip(punctual.shown, late.shown, strict=True)]
    assert max(delays) <= late.lateness_s + 1e-9


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[tuple[float, int]], float, list[tuple[float, int]]]:
    """(waits before a piece of the relay's, its tokens), a wait, and the same of main's."""
    pieces = st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 6)), max_size=60)
    return draw(pieces), draw(st.floats(0, 1.0)), draw(pieces)


@given(arrivals(), st.floats(0, 0.5), st.floats(0, 0.2), st.floats(0, 0.3))
def test_every_token_is_seen_once_in_order_and_none_is_kept(
    played: tuple[list[tuple[float, int]], float, list[tuple[float, int]]], round_trip_s: float, interval_s: float, rest_s: float
) -> None:
    relay, gap_s, main = played
    watched = Watched(round_trip_s, interval_s)
    watched.arrive(P, 0.0)
    for wait_s, count in relay:
        watched.arrive(RLD, watched.now_s + wait_s, count)
        assert watched.playout.in_hand <= watched.playout.lead
    watched.playout.switch()
    watched.until(watched.now_s + gap_s)
    most = watched.playout.in_hand + 6
    for wait_s, count in main:
        watched.arrive(MD, watched.now_s + wait_s, count)
        assert watched.playout.in_hand <= most
        most = max(1, watched.playout.in_hand)
    watched.until(watched.now_s + rest_s)
    watched.flush()
    assert len(watched.shown) == watched.made  # their order is checked as they come
    assert watched.playout.done


@given(st.floats(0.002, 0.2), st.floats(0.0, 0.5), st.integers(1, 200))
def test_a_steady_relay_is_never_slowed_down_by_more_than_a_tenth(interval_s: float, round_trip_s: float, tokens: int) -> None:
    watched = Watched(round_trip_s, interval_s)
    watched.arrive(P, 0.0)
    watched.relay_at((1 + number) * interval_s for number in range(tokens))
    assert max(watched.gaps(), default=0.0) <= STRETCH * interval_s + 1e-6
