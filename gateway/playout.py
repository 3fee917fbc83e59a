"""When a user sees each token of a relayed answer: a small lead is held back, and played out while main takes over.

Called by `gateway.mesh.player` with the tokens as they arrive, for streaming requests of pipeline `relay`. Pure: tokens and times
in, tokens and due times out. Owns the tokens it holds back, never more than the lead and what arrives during the switch. The
token log and the handoff machine are before it and know nothing of it.

From the relay's last token to main's first there is at least one round trip and a step, whichever way the handoff goes. It can't
be shorter, but it can be hidden:

      stage       a token goes out                                    until
      BUILDING    1.1 intervals after the one before, at the latest   the lead is in hand
      HOLDING     when the next one arrives                           the relay is told to stop
      SWITCHING   1.1 intervals after the one before, or later        main's first token arrives
      DRAINING    half an interval after the one before               nothing is in hand
      DONE        at once

The lead is ceil(round trip / interval) + 1 tokens. It is built by going slower than the relay by a tenth, which nobody sees, and
takes about ten tokens for each of the lead. Where the switch comes before that, or takes longer than the lead lasts, the gap that
is left shows; what is in hand is then spread over the time that the switch is expected to take, so that it shows as several small
gaps, not as one. The end of an answer, whatever ends it, plays everything at once.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import NamedTuple

from gateway.generation import Tokens
from pdd.catalog.base import Role

STRETCH = 1.1  # of the relay's interval, while the lead is built and while it is played out
_DRAIN = 0.5  # of the relay's interval, once main has taken over
_SHORTEST_S = 1e-3  # no relay is taken for faster than this: the lead must stay small
_LONGEST_S = 0.5  # no user is kept behind by much more, however long main once took to answer
_MEMORY = 16  # tokens over which the relay's interval is averaged


class Stage(enum.Enum):
    BUILDING = "building the lead"
    HOLDING = "holding the lead"
    SWITCHING = "playing the lead out"
    DRAINING = "playing what is left"
    DONE = "holding nothing back"


class _Held(NamedTuple):
    tokens: Tokens  # a single one
    role: Role
    arrived_s: float


class Playout:
    def __init__(self, round_trip_s: float, interval_s: float) -> None:
        """`round_trip_s` is main's, `interval_s` what is believed of the relay's time between two tokens until it is measured."""
        self.stage = Stage.BUILDING
        self.gap_s = 0.0  # the longest that the user has waited for a token around the switch
        self._round_trip_s = min(_LONGEST_S, round_trip_s)
        self._interval_s = max(_SHORTEST_S, interval_s)
        self._intervals = 0  # that the average knows
        self.lead = self._wanted_lead()
        self._hand: deque[_Held] = deque()
        self._most = 0  # in hand at a time, once main has taken over
        self._relayed_s: float | None = None  # the relay's last arrival
        self._out_s = -math.inf  # when the last token went out, or should have
        self._shown_s = -math.inf  # when it did
        self._switching = False  # the gap is being measured

    @property
    def in_hand(self) -> int:
        return len(self._hand)

    @property
    def done(self) -> bool:
        """Nothing is held back, nor ever will be."""
        return self.stage is Stage.DONE

    def arrive(self, tokens: Tokens, role: Role, now_s: float) -> list[Tokens]:
        """Take tokens made in `role`, in index order, and return those that go out now."""
        if role is Role.PREFILL or self.stage is Stage.DONE:
            return [self._show(tokens, role, now_s)]
        self._hand.extend(_Held(one, role, now_s) for one in _singles(tokens))
        if role is Role.MAIN:
            return self._on_main(now_s)
        self._measure(len(tokens.tokens), now_s)
        return self._on_relay(now_s)

    def switch(self) -> None:
        """The relay is told to stop."""
        self._switching = True
        if self.stage is not Stage.DONE:
            self.stage = Stage.SWITCHING

    def due(self, now_s: float) -> list[Tokens]:
        """The tokens that have become due."""
        out: list[Tokens] = []
        while (due_s := self.next_due_s) is not None and due_s <= now_s:
            out.append(self._pop(now_s))
            self._out_s = due_s  # not now: a late timer must not slow the user down
            self._most = min(self._most, len(self._hand))
        if self.stage is Stage.DRAINING and not self._hand:
            self.stage = Stage.DONE
        return out

    @property
    def next_due_s(self) -> float | None:
        """When to ask for `due` tokens; None where only an arrival, or the end, can release any."""
        if not self._hand or self.stage is Stage.HOLDING:
            return None
        return max(self._hand[0].arrived_s, self._out_s + self._spacing_s())

    def flush(self, now_s: float) -> list[Tokens]:
        """The answer is at its end: everything."""
        self.stage = Stage.DONE
        return [self._pop(now_s) for _ in range(len(self._hand))]

    def _on_relay(self, now_s: float) -> list[Tokens]:
        if self.stage is Stage.SWITCHING:
            return self.due(now_s)
        wanted = self._wanted_lead()
        if wanted > self.lead or wanted < self.lead - 1:  # not to and fro with every measurement
            self.lead = wanted
        if len(self._hand) > self.lead:
            self.stage = Stage.HOLDING
            self._out_s = now_s
            return [self._pop(now_s) for _ in range(len(self._hand) - self.lead)]
        self.stage = Stage.BUILDING
        return self.due(now_s)

    def _on_main(self, now_s: float) -> list[Tokens]:
        if self.stage is not Stage.DRAINING:
            if self._hand[0].role is Role.MAIN:
                return self.flush(now_s)
            self.stage, self._most = Stage.DRAINING, len(self._hand)
        out = self.due(now_s)
        # However fast main is, what is in hand only becomes less.
        return out + [self._pop(now_s) for _ in range(len(self._hand) - self._most)]

    def _spacing_s(self) -> float:
        match self.stage:
            case Stage.DRAINING:
                return _DRAIN * self._interval_s
            case Stage.SWITCHING if self._relayed_s is not None:
                main_s = self._relayed_s + self._round_trip_s + self._interval_s
                return max(STRETCH * self._interval_s, (main_s - self._out_s) / (len(self._hand) + 1))
        return STRETCH * self._interval_s

    def _measure(self, count: int, now_s: float) -> None:
        if self._relayed_s is not None:
            self._intervals = min(_MEMORY, self._intervals + 1)
            self._interval_s += ((now_s - self._relayed_s) / count - self._interval_s) / self._intervals
            self._interval_s = max(_SHORTEST_S, self._interval_s)
        self._relayed_s = now_s

    def _wanted_lead(self) -> int:
        return math.ceil(self._round_trip_s / self._interval_s) + 1

    def _pop(self, now_s: float) -> Tokens:
        tokens, role, _ = self._hand.popleft()
        return self._show(tokens, role, now_s)

    def _show(self, tokens: Tokens, role: Role, now_s: float) -> Tokens:
        if self._switching:
            self.gap_s = max(self.gap_s, now_s - self._shown_s)
            self._switching = role is not Role.MAIN
        if role is Role.PREFILL:
            self._out_s = now_s
        self._shown_s = now_s
        return tokens


def _singles(tokens: Tokens) -> list[Tokens]:
    if len(tokens.tokens) == 1:
        return [tokens]
    return [
        Tokens(tokens.first_index + place, (token,), tokens.source, tokens.logprobs[place : place + 1])
        for place, token in enumerate(tokens.tokens)
    ]
