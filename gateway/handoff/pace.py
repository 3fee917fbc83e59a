"""How fast relay and main are, and how far apart: measured in one handoff, remembered for the next ones.

`PaceMeter` belongs to a handoff machine and measures one request. `PaceBook` belongs to `gateway.mesh`, which gives each request
what is believed at its start and hands in what it has taught at its end. No clock, no I/O: times come from the caller, in seconds
of any one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_RELAY_TOKENS = 8  # an interval measured over fewer is not worth remembering
_WEIGHT = 0.25  # of the newest request in a moving average


@dataclass(frozen=True, slots=True)
class Pace:
    """What a handoff turns on. The defaults are what is believed before the first measurement.

    Known ids share a step of main's with its other users, so n of them take `main_step_s + n * extend_s`: the step there is
    anyway, and what each id adds.
    """

    relay_interval_s: float = 0.02  # between two tokens of a relay that is not throttled
    extend_s: float = 0.009  # what one known id adds to a step of main's; llama.cpp on one CPU core
    round_trip_s: float = 0.05  # from an Extend to its Extended, less the compute
    main_step_s: float = 0.0  # main's usual step, as it last said; 0 where it has made none


@dataclass(frozen=True, slots=True)
class Measured:
    """What one request has taught; None, or 0 ids, where it has taught nothing."""

    relay_interval_s: float | None = None
    round_trip_s: float | None = None
    extended_ids: int = 0
    extending_s: float = 0.0  # what they added to main's steps


class PaceMeter:
    """Measures one request's pace from the events as they arrive."""

    def __init__(self, prior: Pace) -> None:
        self._prior = prior
        self._extend_s = prior.extend_s
        self._main_step_s = prior.main_step_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._counted = 0
        self._best_round_trip_s: float | None = None
        self._extended_ids = 0
        self._extending_s = 0.0

    @property
    def pace(self) -> Pace:
        """Measured where it could be, believed where not."""
        interval_s = self._relay_interval_s(1)
        return Pace(
            self._prior.relay_interval_s if interval_s is None else interval_s,
            self._extend_s,
            self._prior.round_trip_s if self._best_round_trip_s is None else self._best_round_trip_s,
            self._main_step_s,
        )

    @property
    def measured(self) -> Measured:
        return Measured(self._relay_interval_s(_RELAY_TOKENS), self._best_round_trip_s, self._extended_ids, self._extending_s)

    def relay_tokens(self, count: int, now_s: float) -> None:
        """Tokens of a relay that is not throttled have arrived."""
        if self._first_s is None:
            # The first frame may hold tokens that waited for their stream: it sets the clock, and does not count.
            self._first_s = now_s
            return
        self._counted += count
        self._last_s = now_s

    def main_step(self, step_s: float) -> None:
        """Main has said how long its steps are."""
        self._main_step_s = step_s

    def extended(self, computed_tokens: int, compute_s: float, waited_s: float) -> None:
        """Main took `waited_s` to answer an Extend in which it computed so many tokens.

        The last round counts alone: rounds shrink, and its size is the nearest to that of the next one.
        """
        trip_s = max(0.0, waited_s - compute_s)
        if self._best_round_trip_s is None or trip_s < self._best_round_trip_s:
            self._best_round_trip_s = trip_s
        added_s = max(0.0, compute_s - self._main_step_s)
        self._extend_s = added_s / max(1, computed_tokens)
        if self._main_step_s:  # without it the whole step is charged to the ids: an upper bound, for this request alone
            self._extended_ids += computed_tokens
            self._extending_s += added_s

    def _relay_interval_s(self, least: int) -> float | None:
        if self._first_s is None or self._counted < least or self._last_s <= self._first_s:
            return None
        return (self._last_s - self._first_s) / self._counted


class PaceBook:
    """Moving averages over requests: of a relay its interval, of a main its extends and the way to it.

    An id's cost is the quotient of two averages, seconds and ids, so that a large extend says more than a small one, whose
    figure is mostly the step's rounding.
    """

    def __init__(self, prior: Pace) -> None:
        self._prior = prior
        self._intervals = _Averages()
        self._trips = _Averages()
        self._ids = _Averages()
        self._seconds = _Averages()

    def pace(self, relay: Hashable, main: Hashable, greeting_s: float | None = None) -> Pace:
        """What is believed of the pair. `greeting_s` is what main's Hello took, which counts until an Extend was answered."""
        prior = self._prior
        ids = self._ids.get(main, 0.0)
        return Pace(
            relay_interval_s=self._intervals.get(relay, prior.relay_interval_s),
            extend_s=self._seconds.get(main, 0.0) / ids if ids else prior.extend_s,
            round_trip_s=self._trips.get(main, prior.round_trip_s if greeting_s is None else greeting_s),
            main_step_s=prior.main_step_s,
        )

    def learn(self, relay: Hashable, main: Hashable, measured: Measured) -> None:
        if measured.relay_interval_s is not None:
            self._intervals.add(relay, measured.relay_interval_s)
        if measured.round_trip_s is not None:
            self._trips.add(main, measured.round_trip_s)
        if measured.extended_ids:
            self._ids.add(main, measured.extended_ids)
            self._seconds.add(main, measured.extending_s)


class _Averages:
    """One moving average per instance. Instances come and go: the one longest without news is forgotten first."""

    BOUND = 1024

    def __init__(self) -> None:
        self._values: dict[Hashable, float] = {}

    def get(self, instance: Hashable, default: float) -> float:
        return self._values.get(instance, default)

    def add(self, instance: Hashable, value: float) -> None:
        before = self._values.pop(instance, value)
        self._values[instance] = before + _WEIGHT * (value - before)
        if len(self._values) > self.BOUND:
            del self._values[next(iter(self._values))]
