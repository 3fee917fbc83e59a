"""What main has been given of the token log, and what to give it next.

Called by the handoff machine, in both modes: One-Shot is the case without rounds. Owns the count of ids sent, the Extends that
main has not answered, and the relay's throttle. Takes the log to read; never decides when a handoff begins.
"""

from __future__ import annotations

from collections import deque

from gateway.handoff.actions import Extend, ThrottleRelay
from gateway.handoff.estimate import AnotherRound, HandoffPolicy, next_move
from gateway.handoff.events import Extended
from gateway.handoff.pace import Measured, PaceMeter
from gateway.tokenlog import TokenLog

_THROTTLE_STEP = 0.1  # a new interval that differs by a smaller share is not worth a message


class Unasked(ValueError):
    """Main acknowledged an Extend that it was not sent."""


class CatchUp:
    def __init__(self, policy: HandoffPolicy, *, score: bool = False) -> None:
        """`score`: have main compare the ids with its own sampler's."""
        self.rounds = 0
        self._policy = policy
        self._score = score
        self._sent = 0  # output ids given to main
        self._throttle_s = 0.0
        self._unanswered: deque[tuple[int, float]] = deque()  # (next_index, sent at) per Extend, oldest first
        self._meter = PaceMeter(policy.prior)

    @property
    def measured(self) -> Measured:
        return self._meter.measured

    def relay_tokens(self, count: int, now_s: float) -> None:
        """The relay made tokens: learn its rate, as long as the rate is its own."""
        if not self._throttle_s:
            self._meter.relay_tokens(count, now_s)

    def main_step(self, step_s: float) -> None:
        self._meter.main_step(step_s)

    def extended(self, event: Extended, now_s: float) -> None:
        """Main answered an Extend. Raises Unasked unless it is the oldest without an answer."""
        if not self._unanswered or self._unanswered[0][0] != event.next_index:
            raise Unasked(f"Extended to {event.next_index}, which was not asked for")
        _, sent_s = self._unanswered.popleft()
        self._meter.extended(event.computed_tokens, event.compute_s, now_s - sent_s)

    def recalled(self) -> None:
        """Main has given back all that it was sent."""
        self._sent = 0
        self._unanswered.clear()

    def next_round(self, log: TokenLog, now_s: float) -> tuple[ThrottleRelay | Extend, ...]:
        """The actions of one more round, main being idle; empty where it is better to stop the relay and hand over."""
        move = next_move(log.next_index - self._sent, self.rounds, self._meter.pace, self._policy)
        if not isinstance(move, AnotherRound):
            return ()
        self.rounds += 1
        # The last id stays back: main needs one to decode from, and there may come no other.
        extend = self._extend(log, log.next_index - 1, then_decode=False, now_s=now_s)
        if abs(move.relay_interval_s - self._throttle_s) <= _THROTTLE_STEP * self._throttle_s:
            return (extend,)
        self._throttle_s = move.relay_interval_s
        return (ThrottleRelay(move.relay_interval_s), extend)

    def lift(self) -> tuple[ThrottleRelay, ...]:
        """Let the relay go at its own pace again: nobody has to catch up with it any more."""
        throttled, self._throttle_s = self._throttle_s > 0, 0.0
        return (ThrottleRelay(0.0),) if throttled else ()

    def final(self, log: TokenLog, now_s: float) -> Extend:
        """The rest of the log, to decode from. Main queues it behind a round that it has not answered."""
        return self._extend(log, log.next_index, then_decode=True, now_s=now_s)

    def _extend(self, log: TokenLog, end_index: int, *, then_decode: bool, now_s: float) -> Extend:
        extend = Extend(self._sent, log.ids(self._sent, end_index), then_decode, self._score)
        self._unanswered.append((end_index, now_s))
        self._sent = end_index
        return extend
