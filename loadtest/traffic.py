"""What the users ask: the mesh's own workloads at a size that a small model's context holds, and chats in words.

Called by `run`. Pure: everything is drawn from the Random that is given. `scale` multiplies the lengths of prompts and answers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random

from loadtest.answer import Message
from virtual.workloads.agents import Agents
from virtual.workloads.chance import Lengths
from virtual.workloads.documents import Documents

# One token each to the sim, one or two to most models.
_WORDS = """
about above across after again air along amber answer apple autumn back beside between bird blue boat book bread bridge
bright bring brown calm carry cedar change city clear climb cloud coast cold copper country day deep distant door dream early
earth east evening far field find fire flower fog forest garden gentle glass gold grass green ground half harbour
"""


def agents(scale: float) -> Agents:
    """One session for each user, without an end: prompts repeat what came before and add a little."""
    return Agents(
        agents=1 << 20,
        ramp_s=0.0,  # locust says when users begin
        scale=scale,
        longest=3500,
        system=Lengths(600, 0.2, 400, 1000),
        task=Lengths(200, 0.8, 50, 800),
        turns=Lengths(12, 0.5, 4, 40),
        answer=Lengths(60, 0.6, 20, 200),
        result=Lengths(50, 0.7, 10, 300),
        long_result=Lengths(500, 0.5, 200, 1000),
        think_s=Lengths(1.0, 0.8, 0.2, 5.0),
        reader_system=100,
        read=Lengths(2000, 0.25, 1400, 3000),
        summary=Lengths(40, 0.4, 15, 90),
    )


def documents(scale: float) -> Documents:
    """One question about each document: a long prompt that nobody has cached, and a short answer."""
    return Documents(
        scale=scale,
        system_tokens=50,
        document=Lengths(1800, 0.25, 1200, 3000),
        question=Lengths(30, 0.4, 10, 80),
        answer=Lengths(30, 0.4, 12, 80),
        questions=Lengths(1, 0.0, 1, 1),
    )


@dataclass(frozen=True, slots=True)
class ChatTurn:
    messages: tuple[Message, ...]
    max_tokens: int
    think_s: float  # before it is asked


@dataclass(frozen=True, slots=True)
class Chats:
    """Conversations in words, whose history is what was really answered. Lengths are in words before `scale`."""

    scale: float = 1.0
    system_words: int = 120
    question: Lengths = field(default=Lengths(25, 0.8, 5, 200))
    answer: Lengths = field(default=Lengths(80, 0.6, 20, 240))  # tokens
    turns: Lengths = field(default=Lengths(3, 0.6, 1, 8))
    think_s: Lengths = field(default=Lengths(1.5, 0.6, 0.3, 6.0))

    def conversations(self, random: Random) -> Iterator[Generator[ChatTurn, str, None]]:
        """Endless. Each yields what to ask and is sent the answer; all have the same system prompt."""
        system = Message("system", _text(random, max(1, int(self.system_words * self.scale))))
        while True:
            yield self._conversation(Random(random.getrandbits(64)), system)

    def _conversation(self, random: Random, system: Message) -> Generator[ChatTurn, str, None]:
        messages: tuple[Message, ...] = (system,)
        for _ in range(int(self.turns.draw(random))):
            messages += (Message("user", _text(random, self.question.tokens(random, self.scale))),)
            answer = yield ChatTurn(messages, self.answer.tokens(random, self.scale), self.think_s.draw(random))
            messages += (Message("assistant", answer),)


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS.split(), k=words))
