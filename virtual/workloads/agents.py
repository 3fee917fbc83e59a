"""Agents at work: long conversations with tools, in which each prompt repeats the one before it and adds a little.

A fixed number of agents, each with one task after the other. The system prompt, with the tools in it, is shared by all agents of
a group. A turn's prompt is the previous prompt, the previous answer, and a tool's result: mostly short, now and then a file.
From time to time an agent has something very long read by a helper, which sees nothing of the conversation and answers briefly:
those requests are the singular ones.

    system (group's) │ task │ answer │ result │ answer │ result │ …             one turn more each time
    system (readers') │ something long                                         asked once, answered in a few hundred tokens

With an unbounded cache a mean of 90% of the prompt tokens hit, 70–80% of the requests hit above 95%, and 3–4% are singular; the
first turns of tasks and the turns after long results are the low-hit minority.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random

from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.chance import Lengths
from virtual.workloads.passages import new_passage


@dataclass(frozen=True, slots=True)
class Agents:
    """Lengths are in tokens before `scale`, which shortens all of them alike: hit rates stay what they are."""

    agents: int = 24
    groups: int = 4
    ramp_s: float = 60.0  # over which the agents begin
    scale: float = 1.0
    longest: int = 60_000  # a task ends before its prompt and answer are longer
    system: Lengths = field(default=Lengths(9000, 0.2, 6000, 15_000))
    task: Lengths = field(default=Lengths(5000, 0.8, 500, 16_000))
    turns: Lengths = field(default=Lengths(30, 0.5, 4, 120))
    answer: Lengths = field(default=Lengths(140, 0.7, 20, 1500))
    result: Lengths = field(default=Lengths(250, 0.7, 20, 1500))
    long_result: Lengths = field(default=Lengths(8500, 0.5, 2500, 17_000))
    long_results: float = 0.135  # share of the results
    think_s: Lengths = field(default=Lengths(3.0, 1.0, 0.2, 30.0))  # while a tool runs
    turns_a_read: int = 27  # mean; by a helper. Even, not by chance alone, so that short runs have their share too
    reader_system: int = 1000
    read: Lengths = field(default=Lengths(32_000, 0.25, 22_000, 55_000))
    summary: Lengths = field(default=Lengths(200, 0.4, 40, 450))

    def __post_init__(self) -> None:
        first = self.system.most + self.task.most + self.answer.most
        reading = self.reader_system + self.read.most + self.summary.most
        if (needed := max(first, reading)) > self.longest:
            raise ValueError(f"a task's first turn or what a helper reads can take {needed:g} tokens: more than {self.longest}")

    @property
    def context_tokens(self) -> int:
        return int(self.longest * self.scale)

    def sessions(self, random: Random) -> Iterator[Session]:
        systems = [new_passage(random, self.system.tokens(random, self.scale)) for _ in range(self.groups)]
        reader = new_passage(random, max(1, int(self.reader_system * self.scale)))
        for number in range(self.agents):
            own = Random(random.getrandbits(64))
            yield Session(number / self.agents * self.ramp_s, self._life(own, systems[number % self.groups], reader))

    def _life(self, random: Random, system: Ids, reader: Ids) -> Generator[Turn, Ids, None]:
        reads = self._reads(random)
        while True:  # each task has a turn at least, since its first fits
            yield from self._task(random, system, reader, reads)

    def _reads(self, random: Random) -> Iterator[bool]:
        """Before each turn: whether something is to be read first. The first comes at any time in the mean interval."""
        pause = random.randrange(self.turns_a_read)
        while True:
            yield from (False for _ in range(pause))
            yield True
            pause = random.randint(2 * self.turns_a_read // 3, 4 * self.turns_a_read // 3) - 1

    def _task(self, random: Random, system: Ids, reader: Ids, reads: Iterator[bool]) -> Generator[Turn, Ids, None]:
        prompt = system + new_passage(random, self.task.tokens(random, self.scale))
        for _ in range(int(self.turns.draw(random))):
            if next(reads):
                yield self._reading(random, reader)
            answer_tokens = self.answer.tokens(random, self.scale)
            if len(prompt) + answer_tokens > self.context_tokens:
                return
            answer = yield Turn(prompt, answer_tokens, self.think_s.draw(random))
            lengths = self.long_result if random.random() < self.long_results else self.result
            prompt = prompt + answer + new_passage(random, lengths.tokens(random, self.scale))

    def _reading(self, random: Random, reader: Ids) -> Turn:
        text = new_passage(random, self.read.tokens(random, self.scale))
        summary_tokens = self.summary.tokens(random, self.scale)
        return Turn(reader + text, summary_tokens, self.think_s.draw(random), expected_tokens=summary_tokens)
