"""How a handoff would go, and what to do next about it: another Catch-Up round, or hand over now.

Called by the handoff machine with the pace that it has measured. No clock, no I/O.

Catch-Up in numbers. The relay makes a token every `i` seconds, main's step takes `s` and each known id in it `e` more, a round
costs one round trip `R` beside that. While main digests n ids, (R + s + n·e) / i new ones come. With rho = e / i the rest tends
to its fixed point

    rest* = ((R + s) / i) / (1 - rho)        for rho < 1; otherwise it grows without end

so the relay is throttled to a share min(1, 0.5 / rho) of its rate, which makes rho 0.5 at most: an interval of max(i, 2·e). It is
never held slower than the inter-token target, though; where that leaves rho at 1 or above, more rounds cannot help.

One extend of all that is left costs nothing while the step that it shares stays within the inter-token target, for the user and
for everybody else on main: s + n·e <= target. On a main whose steps are near the target by themselves, half a step more counts
as nothing too, since nothing shorter can be had there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.handoff.pace import Pace

TARGET_RHO = 0.5
MIN_GAIN = 0.25  # share of the rest by which a round must shrink it: less is not worth holding the relay's slot for longer
UNFELT_STEPS = 1.5  # a gap of so many steps is not told from one


@dataclass(frozen=True, slots=True)
class HandoffPolicy:
    itl_target_s: float = 0.05  # a stall up to here is not felt, and a throttle up to here neither
    max_rounds: int = 8  # Catch-Up rounds before the relay is stopped
    prior: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if self.itl_target_s <= 0:
            raise ValueError(f"itl_target_s must be above 0, is {self.itl_target_s}")
        if self.max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, is {self.max_rounds}")


@dataclass(frozen=True, slots=True)
class AnotherRound:
    """Extend with all but the last id, the relay going on at this interval; 0 leaves it at its own."""

    relay_interval_s: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """Stop the relay, extend with the rest and decode."""

    why: str


def next_move(rest: int, rounds: int, pace: Pace, policy: HandoffPolicy) -> AnotherRound | HandOver:
    """What to do when main is idle, `rest` ids are ahead of it and `rounds` rounds were made.

    The stall compared with the inter-token target is main's compute for the rest: the round trip on top of it is the same
    whenever the relay is stopped.
    """
    if rest < 2:
        return HandOver("nothing to send ahead of the last id")
    if rounds >= policy.max_rounds:
        return HandOver("rounds used up")
    if extend_fits(rest, pace, policy.itl_target_s):
        return HandOver("the stall fits the inter-token target")
    interval_s = throttled_interval_s(pace, policy.itl_target_s)
    if pace.extend_s >= interval_s:
        return HandOver("the relay outruns main")
    if rest - rest_after_round(rest, pace, interval_s) < MIN_GAIN * rest:
        return HandOver("the rest hardly shrinks any more")
    return AnotherRound(interval_s if interval_s > pace.relay_interval_s else 0.0)


def extend_fits(ids: int, pace: Pace, itl_target_s: float) -> bool:
    """Whether nobody on main would feel so many known ids in one step."""
    return pace.main_step_s + ids * pace.extend_s <= max(itl_target_s, UNFELT_STEPS * pace.main_step_s)


def throttled_interval_s(pace: Pace, itl_target_s: float) -> float:
    """The relay's interval that brings rho to TARGET_RHO, as far as the inter-token target allows."""
    wanted_s = pace.extend_s / TARGET_RHO
    return max(pace.relay_interval_s, min(wanted_s, itl_target_s))


def rest_after_round(rest: int, pace: Pace, interval_s: float) -> float:
    """Ids ahead of main when it has digested all but the last of `rest`: that one, and those that came meanwhile."""
    return 1 + (pace.round_trip_s + pace.main_step_s + (rest - 1) * pace.extend_s) / interval_s
