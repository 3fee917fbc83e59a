"""A trace's requests at their times. Pure: the time is an argument, in seconds from the replay's start.

Asked by the trace's users for what is due, and by the shape for how many users that takes. Requests are open loop: each is asked
at its time, whatever became of those before it. One process replays a whole trace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from virtual.workloads.base import Turn
from virtual.workloads.mooncake import Mooncake

_AHEAD_S = 2.5  # the shape is asked every second: users for what is due until then have to be there


@dataclass(frozen=True, slots=True)
class Due:
    at_s: float
    turn: Turn


class Replay:
    def __init__(self, trace: Mooncake) -> None:
        self._waiting: deque[Due] = deque()
        for session in trace.sessions(Random(0)):  # it draws nothing
            turn = session.next_turn(())
            assert turn is not None
            self._waiting.append(Due(session.start_s, turn))
        self._asking = 0
        self._users = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def finished(self) -> bool:
        return not self._waiting and not self._asking

    def take(self) -> Due | None:
        """The next request, for the caller alone; it waits for its time, asks, and calls `ended`. None where all are taken."""
        if not self._waiting:
            return None
        self._asking += 1
        return self._waiting.popleft()

    def ended(self) -> None:
        self._asking -= 1

    def users(self, now_s: float) -> int:
        """That are needed now. Never fewer than before: locust stops users in the middle of an answer."""
        soon = sum(due.at_s <= now_s + _AHEAD_S for due in self._waiting)
        self._users = max(self._users, self._asking + soon, 1)
        return self._users
