"""Choose the next token: a pure function of (seed, output index, logits, token history, parameters).

Called by the batch engine for every row that wants a token. Owns nothing: a decoder that takes over anywhere, given the same ids,
chooses the same token. Randomness is Gumbel noise keyed by (seed, index), added to the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms, of the model's own distribution: before penalties, temperature and filters."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Bounds and meanings as in sampling.proto; the gateway validates, `from_proto` checks again."""

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class History:
    """The ids before the token to choose."""

    prompt: Sequence[int]
    output: Sequence[int]
