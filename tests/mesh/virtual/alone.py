"""What one sim gives for a prompt under any parameters, computed without an engine: no slots, steps, blocks or handoffs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from pdd.engine.base import FinishReason
from pdd.engine.sim.digest import ROOT, choose, logits, token_kv
from pdd.engine.sim.vocabulary import sim_vocabulary
from pdd.sampling import History, SamplingParams, TokenLogprobs, sample

_VOCABULARY = sim_vocabulary()


@dataclass(frozen=True, slots=True)
class Alone:
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Scores:
    kv_hash: int

    def argmax(self) -> int:
        return choose(self.kv_hash, _VOCABULARY)

    def array(self) -> NDArray[np.float32]:
        return logits(self.kv_hash, _VOCABULARY)


def alone(prompt: Sequence[int], sampling: SamplingParams) -> Alone:
    kv_hash, kv = xxhash.xxh3_64(), ROOT
    output: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for token in prompt:
        kv = token_kv(kv, token)
        kv_hash.update(kv)
    while len(output) < sampling.max_tokens:
        sampled = sample(_Scores(kv_hash.intdigest()), sampling, len(output), History(prompt, output))
        if sampled.token in sampling.eos_ids and not sampling.ignore_eos:
            return Alone(tuple(output), tuple(logprobs), FinishReason.STOP)
        output.append(sampled.token)
        if sampled.logprobs is not None:
            logprobs.append(sampled.logprobs)
        kv = token_kv(kv, sampled.token)
        kv_hash.update(kv)
    return Alone(tuple(output), tuple(logprobs), FinishReason.LENGTH)
