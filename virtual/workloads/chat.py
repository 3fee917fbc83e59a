"""People who chat: short prompts that grow by a question and an answer, with long pauses; one system prompt for all.

Conversations begin by a Poisson process. The middle of the road: part of each prompt hits, and no prompt is long.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random

from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.chance import Lengths, arrivals
from virtual.workloads.passages import new_passage


@dataclass(frozen=True, slots=True)
class Chat:
    """Lengths are in tokens before `scale`."""

    rate_s: float = 0.5  # conversations that begin in a second
    scale: float = 1.0
    longest: int = 8192  # a conversation ends before its prompt and answer are longer
    system_tokens: int = 600
    question: Lengths = field(default=Lengths(80, 1.1, 5, 3000))
    answer: Lengths = field(default=Lengths(250, 0.7, 10, 1200))
    turns: Lengths = field(default=Lengths(3, 0.8, 1, 20))
    think_s: Lengths = field(default=Lengths(20.0, 0.8, 3.0, 120.0))

    @property
    def context_tokens(self) -> int:
        return int(self.longest * self.scale)

    def sessions(self, random: Random) -> Iterator[Session]:
        system = new_passage(random, max(1, int(self.system_tokens * self.scale)))
        starts = Random(random.getrandbits(64))
        for start_s in arrivals(starts, self.rate_s):
            yield Session(start_s, self._conversation(Random(random.getrandbits(64)), system))

    def _conversation(self, random: Random, system: Ids) -> Generator[Turn, Ids, None]:
        prompt, think_s = system, 0.0
        for _ in range(int(self.turns.draw(random))):
            prompt = prompt + new_passage(random, self.question.tokens(random, self.scale))
            answer_tokens = self.answer.tokens(random, self.scale)
            if len(prompt) + answer_tokens > self.context_tokens:
                return
            prompt += yield Turn(prompt, answer_tokens, think_s)
            think_s = self.think_s.draw(random)
