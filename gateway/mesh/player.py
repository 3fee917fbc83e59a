"""Hands the tokens of one request on to its reader: at once, or when `gateway.playout` says so.

Used by `request`, which fills it with what the handoff machine shows. Owns the one timer that a playout needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.generation import Tokens
from gateway.playout import Playout
from pdd.catalog.base import Role


class Player:
    def __init__(self, playout: Playout | None, hand_on: Callable[[Sequence[Tokens]], None]) -> None:
        """Without a playout everything goes on at once. `hand_on` must not raise."""
        self._loop = asyncio.get_running_loop()
        self._playout = playout  # None once it holds nothing back any more
        self._hand_on = hand_on
        self._gap_of = playout
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s: float | None = None  # uvloop's timers do not tell

    @property
    def gap_s(self) -> float | None:
        """The longest that the reader has waited around the switch; None where nothing was ever held back."""
        return None if self._gap_of is None else self._gap_of.gap_s

    def play(self, tokens: Tokens, role: Role, now_s: float) -> None:
        """Take tokens made in `role`, in index order."""
        if self._playout is None:
            self._hand_on((tokens,))
        else:
            self._hand_on(self._playout.arrive(tokens, role, now_s))
            self._go_on()

    def switch(self) -> None:
        """The relay is told to stop."""
        if self._playout is not None:
            self._playout.switch()
            self._go_on()

    def flush(self, now_s: float) -> None:
        """The answer is at its end: hand everything on."""
        if self._playout is not None:
            self._hand_on(self._playout.flush(now_s))
            self.close()

    def close(self) -> None:
        """What is held back is wanted no more."""
        self._playout = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_on(self) -> None:
        if self._playout is None:
            return  # whoever was handed tokens has ended the request over them
        if self._playout.done:
            self.close()
            return
        due_s = self._playout.next_due_s
        if self._timer is not None:
            if self._timer_due_s == due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._on_due, self._playout, due_s)

    def _on_due(self, playout: Playout, due_s: float) -> None:
        self._timer = None
        # uvloop's clock has whole milliseconds and its timers fire up to half of one early: then it is time all the same, or this
        # would spin until it is.
        self._hand_on(playout.due(max(self._loop.time(), due_s)))
        self._go_on()
