"""What a workload is: sessions, each a row of turns in which a prompt may depend on the answer before it.

Implemented by `agents`, `chat`, `documents` and `mooncake`; walked by `drive` against a mesh and by `offline` without one. A
workload draws everything from the Random that it is given, and each session from one of its own: so what a session asks depends
on the seed and on its answers, never on what the others do meanwhile. It never waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

Ids: TypeAlias = tuple[int, ...]  # token ids


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. Its answer has exactly `max_tokens` tokens."""

    prompt: Ids
    max_tokens: int
    think_s: float = 0.0  # from the answer before it, or from the session's start
    expected_tokens: int | None = None  # what the client says of the answer's length, where it says anything


class Session:
    """One client, which asks one turn after the other."""

    def __init__(self, start_s: float, turns: Generator[Turn, Ids, None]) -> None:
        """`turns` yields what to ask and is sent the answer."""
        self.start_s = start_s
        self._turns = turns
        self._began = False

    def next_turn(self, answer: Ids) -> Turn | None:
        """What follows `answer`, which is empty before the first turn. None where the session is over."""
        try:
            if self._began:
                return self._turns.send(answer)
            self._began = True
            return next(self._turns)
        except StopIteration:
            return None


class Workload(Protocol):
    @property
    def context_tokens(self) -> int:
        """Prompt and answer of any turn fit into so many tokens."""
        ...

    def sessions(self, random: Random) -> Iterator[Session]:
        """In the order in which they start; may be endless."""
        ...
