"""Requests that need a relay while all of them are full: first come, first served, each for as long as it may wait.

Used by `planner`, which says what a request gets and when a relay may have a slot again. Owns the order alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway.generation import MeshError, MeshErrorCode
from gateway.routing.plan import Plan, Wait

Decide = Callable[[float], Plan | Wait]  # given the seconds that the request has waited; raises MeshError

_LEAST_WAIT_S = 0.001  # what rounding leaves of a budget may be too short for a clock to move


class RelayQueue:
    def __init__(self, bound: int, budget_s: float) -> None:
        """At most `bound` wait at a time, and each no longer than `budget_s`."""
        self._bound = bound
        self._budget_s = budget_s
        self._turns: deque[asyncio.Event] = deque()

    def __len__(self) -> int:
        return len(self._turns)

    async def plan(self, decide: Decide) -> Plan:
        """What `decide` gives, once it is this request's turn. A plan without a relay needs no turn. Raises MeshError."""
        found = decide(0.0)
        if isinstance(found, Plan) and (found.relay is None or not self._turns):
            return found
        if len(self._turns) >= self._bound:
            text = f"all relays are full, and {self._bound} requests wait for one: try again later, or start relays"
            raise MeshError(MeshErrorCode.OVERLOADED, text)
        turn = asyncio.Event()
        self._turns.append(turn)
        try:
            return await self._wait(turn, found, decide)
        finally:
            self._turns.remove(turn)
            self.wake()

    def wake(self) -> None:
        """A relay may have a slot: the first in line is to look."""
        if self._turns:
            self._turns[0].set()

    async def _wait(self, turn: asyncio.Event, found: Plan | Wait, decide: Decide) -> Plan:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            left_s = self._budget_s - (loop.time() - began_s)
            if isinstance(found, Plan):
                if found.relay is None or self._turns[0] is turn or left_s <= 0:
                    return found
            else:
                left_s = found.at_most_s
            with suppress(TimeoutError):  # then it is decided without a slot
                async with asyncio.timeout(max(left_s, _LEAST_WAIT_S)):
                    await turn.wait()
            turn.clear()
            found = decide(loop.time() - began_s)
