"""How the relay hands over, once main has the KV: at once, or in rounds until little is left.

Called by the handoff machine, which says when main is ready and what it answers. Owns the relay's leaning, main's load and the
catch-up. Returns actions of which the last says what the request waits for then: Extend a round, StopRelay the relay's end.
"""

from __future__ import annotations

from gateway.handoff.actions import Extend, StopRelay, ThrottleRelay
from gateway.handoff.catchup import CatchUp
from gateway.handoff.slots import full
from gateway.mode import DecoderLoad, HandoffMode, Leaning, settled
from gateway.tokenlog import TokenLog

SwitchActions = tuple[ThrottleRelay | Extend | StopRelay, ...]


class Switch:
    def __init__(self, leaning: Leaning, catch_up: CatchUp) -> None:
        """`leaning` is the relay's at the start."""
        self.catch_up = catch_up
        self._leaning = leaning
        self._main_load: DecoderLoad | None = None
        self._cut_short = False  # a Catch-Up that the relay's load turned into One-Shot

    @property
    def mode(self) -> HandoffMode:
        """How it went, when the relay has stopped."""
        caught_up = self.catch_up.rounds > 0 and not self._cut_short
        return HandoffMode.CATCH_UP if caught_up else HandoffMode.ONE_SHOT

    def main_load(self, load: DecoderLoad) -> None:
        self._main_load = load
        self.catch_up.main_step(load.step_s)

    def begin(self, log: TokenLog, now_s: float) -> SwitchActions:
        """Main's KV is whole. Empty while main has no slot: to be asked again with the next load."""
        if self._main_load is not None and full(self._main_load):
            return ()
        return (StopRelay(),) if self._at_once() else self.next_round(log, now_s)

    def next_round(self, log: TokenLog, now_s: float) -> SwitchActions:
        """Main is idle: another round, or the end of them."""
        return self.catch_up.next_round(log, now_s) or (StopRelay(),)

    def lean(self, leaning: Leaning, *, in_rounds: bool) -> SwitchActions:
        """The relay leans another way. Not empty where that ends the rounds under way."""
        self._leaning = leaning
        if not in_rounds or not self._at_once():
            return ()
        self._cut_short = True
        return (StopRelay(),)

    def _at_once(self) -> bool:
        return settled(self._leaning, self._main_load) is HandoffMode.ONE_SHOT
