"""The Catch-Up decision, against figures measured on llama.cpp on one CPU core (docs: engine notes) and of a GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.handoff.estimate import (
    AnotherRound,
    HandoffPolicy,
    HandOver,
    extend_fits,
    next_move,
    rest_after_round,
    throttled_interval_s,
)
from gateway.handoff.pace import Pace

CPU = Pace(relay_interval_s=0.0095, extend_s=0.009, round_trip_s=0.04)  # rho is about 0.95
GPU = Pace(relay_interval_s=0.025, extend_s=0.0004, round_trip_s=0.1)
POLICY = HandoffPolicy()


@pytest.mark.parametrize(
    ("rest", "rounds", "pace", "move"),
    [
        (1, 0, CPU, HandOver("nothing to send ahead of the last id")),
        (5, 0, CPU, HandOver("the stall fits the inter-token target")),  # 5 × 9 ms
        (60, 0, CPU, AnotherRound(0.018)),  # throttled to half the speed at which main computes
        (60, 8, CPU, HandOver("rounds used up")),
        (7, 3, CPU, HandOver("the rest hardly shrinks any more")),  # the fixed point is 4.4 ids and the one held back
        (60, 0, Pace(0.0095, 0.05, 0.04), HandOver("the relay outruns main")),  # even at 50 ms a token
        (100, 0, GPU, HandOver("the stall fits the inter-token target")),  # one extend of everything costs nothing
        (200, 0, GPU, AnotherRound(0.0)),  # no throttle needed
    ],
)
def test_next_move(rest: int, rounds: int, pace: Pace, move: AnotherRound | HandOver) -> None:
    assert next_move(rest, rounds, pace, POLICY) == move


@pytest.mark.parametrize(
    ("pace", "itl_target_s", "interval_s"),
    [
        (CPU, 0.05, 0.018),  # rho 0.5
        (CPU, 0.012, 0.012),  # never slower than the inter-token target
        (GPU, 0.05, 0.025),  # rho is below 0.5 as it is
        (Pace(0.08, 0.1, 0.04), 0.05, 0.08),  # a relay slower than the target is not made slower
    ],
)
def test_throttle_aims_at_half_and_stays_within_the_target(pace: Pace, itl_target_s: float, interval_s: float) -> None:
    assert throttled_interval_s(pace, itl_target_s) == interval_s


def test_catch_up_on_a_cpu_converges_in_a_few_rounds() -> None:
    rest, rounds, eager = 60, 0, 60
    while isinstance(move := next_move(rest, rounds, CPU, POLICY), AnotherRound):
        came = round(rest_after_round(rest, CPU, move.relay_interval_s)) - 1
        rest, rounds, eager = came + 1, rounds + 1, eager + came
    assert 3 <= rounds <= 5
    assert eager < 150  # unthrottled, 463 over 12 rounds
    assert rest * CPU.extend_s < 0.09  # against 0.54 s for all 60 at once


@given(
    st.integers(0, 2000),
    st.builds(Pace, *(st.floats(0, 1, allow_nan=False) for _ in range(3))).filter(lambda pace: pace.relay_interval_s > 1e-6),
)
def test_rounds_never_go_on_for_ever(rest: int, pace: Pace) -> None:
    rounds = 0
    while isinstance(move := next_move(rest, rounds, pace, POLICY), AnotherRound):
        assert move.relay_interval_s == 0 or pace.relay_interval_s < move.relay_interval_s <= POLICY.itl_target_s
        rounds += 1
    assert rounds <= POLICY.max_rounds


@pytest.mark.parametrize(
    ("ids", "step_s", "fits"),
    [
        (5, 0.0, True),
        (6, 0.0, False),  # 54 ms
        (2, 0.03, True),
        (3, 0.03, False),  # beside a step of 30 ms
        (5, 0.1, True),  # half a step more is as near to the target as can be
        (6, 0.1, False),
    ],
)
def test_what_fits_is_the_step_with_the_ids_in_it(ids: int, step_s: float, fits: bool) -> None:
    assert extend_fits(ids, Pace(extend_s=0.009, main_step_s=step_s), itl_target_s=0.05) is fits


@pytest.mark.parametrize("wrong", [{"itl_target_s": 0.0}, {"max_rounds": 0}])
def test_policy_refuses_what_makes_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HandoffPolicy(**wrong)  # type: ignore[arg-type]
