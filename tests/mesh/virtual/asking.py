"""Puts a request to a virtual mesh and keeps what came, and when."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from gateway.generation import End, GenerationSpec, Generator, Tokens
from pdd.sampling import SamplingParams, TokenLogprobs


@dataclass(slots=True)
class Answer:
    asked_s: float
    tokens: list[int] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)  # of each token
    sources: list[str] = field(default_factory=list)  # of each token
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: End | None = None

    @property
    def ttft_s(self) -> float:
        return self.arrived_s[0] - self.asked_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.arrived_s)]

    def made_by(self, role: str) -> int:
        return sum(source.startswith(role) for source in self.sources)


async def ask(
    generator: Generator,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    *,
    streaming: bool = True,
    expected_tokens: int | None = None,
) -> Answer:
    clock = asyncio.get_running_loop().time
    answer = Answer(clock())
    async with generator.generate(GenerationSpec(prompt, sampling, "test", streaming, expected_tokens)) as generation:
        async for item in generation:
            if isinstance(item, Tokens):
                assert item.first_index == len(answer.tokens)
                answer.tokens += item.tokens
                answer.arrived_s += [clock()] * len(item.tokens)
                answer.sources += [item.source] * len(item.tokens)
                answer.logprobs += item.logprobs
            else:
                answer.end = item
    return answer


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)


def prompt_of(tokens: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((7 * position + position // 5 + 31 * seed) % 1000 for position in range(tokens))
