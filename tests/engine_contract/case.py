"""What the parts of the contract share: engines to run, prompts to give them, and sampling that is easy to reason about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from pdd.engine.base import Engine
from pdd.sampling import SamplingParams
from tests.engine_contract.observer import Observer, observe

BLOCK = 16
FOREVER_S = 3600.0


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)


SAMPLINGS = {
    "greedy": greedy(40),
    "seeded": SamplingParams(max_tokens=40, seed=7, temperature=0.9, top_p=0.9, ignore_eos=True),
    "penalised": SamplingParams(
        max_tokens=40, seed=7, temperature=0.8, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
    ),
}


def fresh_index(ids: Sequence[int], least: int) -> int:
    """The first index from `least` on whose id did not come before: made the EOS, it ends the text exactly there."""
    return next(index for index in range(least, len(ids)) if ids[index] not in ids[:index])


class EngineCase:
    chunk_tokens = 128  # of a prompt, prefilled in a step

    def running(self, extend_tokens: int = 256) -> AbstractAsyncContextManager[Engine]:
        """An engine to enter, of 2 to 8 slots and about 512 tokens of context, whose extends may take so many tokens of a step.

        All of them compute the same.
        """
        pytest.fail("override me")

    def prompt(self, tokens: int) -> list[int]:
        """Some prompt of exactly that many ids, 1 to 511."""
        pytest.fail("override me")

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        async with self.running() as engine:
            yield engine

    @pytest.fixture
    async def observer(self, engine: Engine) -> AsyncIterator[Observer]:
        async with observe(engine) as observer:
            yield observer
