"""How fast the lines between the sites carry KV, and how much is ahead on them.

`LinkBook` is fed by `gateway.mesh` with what prefills report and what routing has promised, and read for every snapshot. Pure:
times are monotonic seconds of one clock. A line is a pair of sites; everyone who sends over it shares it, so its goodput is the
sum of what its transfers reach at one time, and its backlog the sum of what they have left. Transfers so short that they lie
between two reports may have been one after the other, and are not added up.

Reports come at least every 250 ms while something is on its way, and prefill's figure falls as long as nothing is acknowledged: a
line that falls to a tenth, or dies, is seen within 2 s. A report without a figure says nothing, since a transfer may wait for the
computing. A line on which nothing moves is believed for a minute to be as it was: for the first seconds as at last, and then as
good as it has been lately. Who believes a line to be dead sends nothing over it, and would never learn of its return; who is too
hopeful is corrected by the next transfer (`correct`). After that minute it is believed to be as configured.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from gateway.routing.snapshot import Line, Link

_SMOOTHING_S = 0.3  # after which a report outweighs all before it
_TOGETHER_S = 0.5  # reports that are no further apart are of one time
_FRESH_S = 5.0  # for which the last measurement counts as it is
_LATELY_S = 120.0  # in which the best that a line has been falls to a third
_MEMORY_S = 60.0  # for which anything is believed of an idle line
_TRIP_WEIGHT = 0.25  # of the newest round trip in the moving average
_LEAST_BYTES_S = 1.0  # of a line that stands still: an estimate must be a number


@dataclass(slots=True)
class _Flow:
    """What one prefill sends to one main."""

    backlog_bytes: int = 0
    transfers: int = 0
    reported_bytes_s: float = 0.0
    reported_s: float = -math.inf
    goodput_bytes_s: float = 0.0  # smoothed
    measured_s: float = -math.inf
    moving: bool = False  # at the last report, or up to it

    def report(self, backlog_bytes: int, transfers: int, goodput_bytes_s: float, now_s: float) -> bool:
        """Returns whether the goodput is news: one that is repeated while nothing moves is not."""
        self.moving = self.backlog_bytes > 0 or backlog_bytes > 0
        moved = self.moving or goodput_bytes_s != self.reported_bytes_s
        self.backlog_bytes, self.transfers = backlog_bytes, transfers
        self.reported_bytes_s, self.reported_s = goodput_bytes_s, now_s
        news = moved and goodput_bytes_s > 0
        if news:
            weight = 1.0 - math.exp((self.measured_s - now_s) / _SMOOTHING_S)
            self.goodput_bytes_s += weight * (goodput_bytes_s - self.goodput_bytes_s)
            self.measured_s = now_s
        return news

    def left_bytes(self, now_s: float) -> float:
        """The backlog, less what has moved since it was last heard of."""
        silent_s = max(0.0, now_s - self.reported_s - _TOGETHER_S)
        return max(0.0, self.backlog_bytes - self.goodput_bytes_s * silent_s)


@dataclass(slots=True)
class _LineState:
    flows: dict[tuple[str, str], _Flow] = field(default_factory=dict)  # by prefill and main
    promised_bytes: int = 0
    promises: int = 0  # of something
    goodput_bytes_s: float = 0.0
    measured_s: float = -math.inf
    lately_bytes_s: float = 0.0  # the best, fading
    round_trip_s: float | None = None

    def measure(self, newest: _Flow, now_s: float) -> None:
        moving = (flow for flow in self.flows.values() if flow.moving and now_s - flow.measured_s <= _TOGETHER_S)
        self.take(max(newest.goodput_bytes_s, sum(flow.goodput_bytes_s for flow in moving)), now_s)

    def take(self, goodput_bytes_s: float, now_s: float) -> None:
        self.lately_bytes_s = max(goodput_bytes_s, self._lately(now_s))
        self.goodput_bytes_s, self.measured_s = goodput_bytes_s, now_s

    def believed(self, now_s: float) -> float | None:
        """Bytes a second; None where nothing is known that still counts."""
        idle_s = now_s - self.measured_s
        if idle_s > _MEMORY_S:
            return None
        return max(self.goodput_bytes_s, _LEAST_BYTES_S) if idle_s <= _FRESH_S else self._lately(now_s)

    def _lately(self, now_s: float) -> float:
        return max(self.goodput_bytes_s, self.lately_bytes_s * math.exp((self.measured_s - now_s) / _LATELY_S))

    def forget(self, instance_id: str) -> None:
        for ends in [ends for ends in self.flows if instance_id in ends]:
            del self.flows[ends]


class LinkBook:
    def __init__(self, prior: Link) -> None:
        """`prior` is what is believed of a line until it has been measured."""
        self.prior = prior
        self._lines: dict[Line, _LineState] = {}
        self._promises: dict[Hashable, tuple[Line, int]] = {}

    def report(
        self,
        line: Line,
        prefill: str,
        main: str,
        backlog_bytes: int,
        goodput_bytes_s: float,
        now_s: float,
        transfers: int = 1,
    ) -> None:
        """A prefill has told of its transfers to a main (LinkLoad); instances by id."""
        state = self._state(line)
        flow = state.flows.setdefault((prefill, main), _Flow())
        if flow.report(backlog_bytes, transfers, goodput_bytes_s, now_s):
            state.measure(flow, now_s)

    def transferred(self, line: Line, sent_bytes: int, took_s: float, now_s: float) -> None:
        """A transfer is done. Counts only on a line without reports: it tells of the past, and of a share of the line."""
        state = self._state(line)
        if now_s - state.measured_s > _FRESH_S and took_s > 2 * self._round_trip_s(state):  # else it was mostly the round trip
            state.take(sent_bytes / took_s, now_s)

    def round_trip(self, line: Line, took_s: float) -> None:
        state = self._state(line)
        before_s = took_s if state.round_trip_s is None else state.round_trip_s
        state.round_trip_s = before_s + _TRIP_WEIGHT * (took_s - before_s)

    def promise(self, request: Hashable, line: Line, missing_bytes: int) -> None:
        """A request was given a plan that will send so much: no report tells of it before its target has accepted it."""
        self.settle(request)
        self._promises[request] = (line, missing_bytes)
        state = self._state(line)
        state.promised_bytes += missing_bytes
        state.promises += missing_bytes > 0

    def settle(self, request: Hashable) -> None:
        """The target has said what it wants, which reports tell of from then on; or the request is over. May be repeated."""
        line, missing_bytes = self._promises.pop(request, (None, 0))
        if line is not None:
            self._lines[line].promised_bytes -= missing_bytes
            self._lines[line].promises -= missing_bytes > 0

    def forget(self, instance_id: str) -> None:
        """An instance is gone: nothing of it moves any more."""
        for state in self._lines.values():
            state.forget(instance_id)

    def link(self, line: Line, now_s: float) -> Link:
        state = self._lines.get(line)
        if state is None:
            return self.prior
        left = [(left_bytes, flow.transfers) for flow in state.flows.values() if (left_bytes := flow.left_bytes(now_s)) > 0]
        return Link(
            state.believed(now_s) or self.prior.goodput_bytes_s,
            state.promised_bytes + round(sum(left_bytes for left_bytes, _ in left)),
            state.promises + sum(transfers for _, transfers in left),
            self._round_trip_s(state),
        )

    def links(self, now_s: float) -> Mapping[Line, Link]:
        """Every line that anything is known of."""
        return {line: self.link(line, now_s) for line in self._lines}

    def _state(self, line: Line) -> _LineState:
        return self._lines.setdefault(line, _LineState())

    def _round_trip_s(self, state: _LineState) -> float:
        return self.prior.round_trip_s if state.round_trip_s is None else state.round_trip_s
