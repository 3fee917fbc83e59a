"""Long documents with a few questions each: the first question misses all of it, the others hit almost all.

Documents come by a Poisson process, and nobody asks about the same one twice. Questions do not see each other's answers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random

from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.chance import Lengths, arrivals
from virtual.workloads.passages import new_passage


@dataclass(frozen=True, slots=True)
class Documents:
    """Lengths are in tokens before `scale`."""

    rate_s: float = 0.1  # documents that come in a second
    scale: float = 1.0
    system_tokens: int = 300
    document: Lengths = field(default=Lengths(20_000, 0.6, 4000, 55_000))
    question: Lengths = field(default=Lengths(60, 0.6, 10, 400))
    answer: Lengths = field(default=Lengths(250, 0.6, 30, 1000))
    questions: Lengths = field(default=Lengths(2.5, 0.6, 1, 8))  # of a document
    think_s: Lengths = field(default=Lengths(15.0, 0.8, 2.0, 90.0))

    @property
    def context_tokens(self) -> int:
        longest = self.system_tokens + self.document.most + self.question.most + self.answer.most
        return int(longest * self.scale) + 3  # of four parts, three may have been rounded up to 1

    def sessions(self, random: Random) -> Iterator[Session]:
        system = new_passage(random, max(1, int(self.system_tokens * self.scale)))
        starts = Random(random.getrandbits(64))
        for start_s in arrivals(starts, self.rate_s):
            yield Session(start_s, self._reading(Random(random.getrandbits(64)), system))

    def _reading(self, random: Random, system: Ids) -> Generator[Turn, Ids, None]:
        text = system + new_passage(random, self.document.tokens(random, self.scale))
        think_s = 0.0
        for _ in range(int(self.questions.draw(random))):
            prompt = text + new_passage(random, self.question.tokens(random, self.scale))
            yield Turn(prompt, self.answer.tokens(random, self.scale), think_s)
            think_s = self.think_s.draw(random)
