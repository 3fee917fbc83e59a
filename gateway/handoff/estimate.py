"""How fast a handoff would go, and what to do next about it: another Catch-Up round, or hand over now.

Called by the handoff machine. `PaceMeter` measures one request; `next_move` decides from its figures. No clock, no I/O.

Catch-Up in numbers. The relay makes a token every `i` seconds, main computes a known one in `e`, a round costs one round trip `R`
beside its compute. While main digests n ids, (R + n·e) / i new ones come. With rho = e / i the rest tends to its fixed point

    rest* = (R / i) / (1 - rho)        for rho < 1; otherwise it grows without end

so the relay is throttled to a share min(1, 0.5 / rho) of its rate, which makes rho 0.5 at most: an interval of max(i, 2·e). It is
never held slower than the inter-token target, though; where that leaves rho at 1 or above, more rounds cannot help.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TARGET_RHO = 0.5
MIN_GAIN = 0.25  # share of the rest by which a round must shrink it: less is not worth holding the relay's slot for longer


@dataclass(frozen=True, slots=True)
class Pace:
    """The three figures a handoff turns on. The defaults are what is believed before the first measurement."""

    relay_interval_s: float = 0.02  # between two tokens of a relay that is not throttled
    extend_s: float = 0.009  # main's compute for one known token; llama.cpp on one CPU core
    round_trip_s: float = 0.05  # from an Extend to its Extended, less the compute


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


@dataclass(slots=True)
class PaceMeter:
    """Measures one request's pace from the events as they arrive; times in seconds of any one monotonic clock."""

    pace: Pace
    _first_s: float | None = None
    _counted: int = 0
    _best_round_trip_s: float | None = None

    def relay_tokens(self, count: int, now_s: float) -> None:
        """Tokens of a relay that is not throttled have arrived."""
        if self._first_s is None:
            # The first frame may hold tokens that waited for their stream: it sets the clock, and does not count.
            self._first_s = now_s
            return
        self._counted += count
        if now_s > self._first_s:
            self.pace = Pace((now_s - self._first_s) / self._counted, self.pace.extend_s, self.pace.round_trip_s)

    def extended(self, computed_tokens: int, compute_s: float, waited_s: float) -> None:
        """Main took `waited_s` to answer an Extend in which it computed so many tokens.

        The last round counts alone: rounds shrink, and its size is the nearest to that of the next one.
        """
        trip_s = max(0.0, waited_s - compute_s)
        if self._best_round_trip_s is None or trip_s < self._best_round_trip_s:
            self._best_round_trip_s = trip_s
        self.pace = Pace(self.pace.relay_interval_s, compute_s / max(1, computed_tokens), self._best_round_trip_s)


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
    if rest * pace.extend_s <= policy.itl_target_s:
        return HandOver("the stall fits the inter-token target")
    interval_s = throttled_interval_s(pace, policy.itl_target_s)
    if pace.extend_s >= interval_s:
        return HandOver("the relay outruns main")
    if rest - rest_after_round(rest, pace, interval_s) < MIN_GAIN * rest:
        return HandOver("the rest hardly shrinks any more")
    return AnotherRound(interval_s if interval_s > pace.relay_interval_s else 0.0)


def throttled_interval_s(pace: Pace, itl_target_s: float) -> float:
    """The relay's interval that brings rho to TARGET_RHO, as far as the inter-token target allows."""
    wanted_s = pace.extend_s / TARGET_RHO
    return max(pace.relay_interval_s, min(wanted_s, itl_target_s))


def rest_after_round(rest: int, pace: Pace, interval_s: float) -> float:
    """Ids ahead of main when it has digested all but the last of `rest`: that one, and those that came meanwhile."""
    return 1 + (pace.round_trip_s + (rest - 1) * pace.extend_s) / interval_s
