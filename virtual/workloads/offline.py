"""A workload's requests without a mesh: answers are made up, and come after a fixed time a token.

Called by `statistics`. Pure: time is only a number that orders the turns of different sessions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from virtual.workloads.base import Ids, Session, Turn, Workload
from virtual.workloads.passages import new_passage

TOKEN_S = 0.025


@dataclass(frozen=True, slots=True)
class Exchange:
    asked_s: float
    turn: Turn
    answer: Ids


def exchanges(workload: Workload, random: Random, duration_s: float) -> Iterator[Exchange]:
    """What is asked before `duration_s`, in the order of asking."""
    answers = Random(random.getrandbits(64))
    due: list[tuple[float, int, Turn, Session]] = []  # when the turn is asked; the number tells equal times apart

    def await_turn(session: Session, number: int, now_s: float, answer: Ids) -> None:
        turn = session.next_turn(answer)
        if turn is not None and now_s + turn.think_s < duration_s:
            heapq.heappush(due, (now_s + turn.think_s, number, turn, session))

    def play_until(until_s: float) -> Iterator[Exchange]:
        while due and due[0][0] < until_s:
            asked_s, number, turn, session = heapq.heappop(due)
            answer = new_passage(answers, turn.max_tokens)
            yield Exchange(asked_s, turn, answer)
            await_turn(session, number, asked_s + turn.max_tokens * TOKEN_S, answer)

    for number, session in enumerate(workload.sessions(random)):
        if session.start_s >= duration_s:
            break
        yield from play_until(session.start_s)
        await_turn(session, number, session.start_s, ())
    yield from play_until(duration_s)
