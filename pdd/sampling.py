"""Choose the next token: a pure function of (seed, output index, logits, token history, parameters).

Called by the batch engine for every row that wants a token. Owns nothing: a decoder that takes over anywhere, given the same ids,
chooses the same token. Randomness is Gumbel noise keyed by (seed, index), added to the logits.

    logits ─► repetition penalty ─► presence and frequency penalty ─► bias ─► EOS withheld
        temperature 0 ─► argmax
        above         ─► ÷ temperature ─► top-k ─► top-p ─► min-p ─► + noise ─► argmax
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Scores(Protocol):
    """What `sample` needs of an engine's logits."""

    def argmax(self) -> int:
        """The lowest id among those with the greatest logit."""
        ...

    def array(self) -> NDArray[np.float32]:
        """Shape (vocabulary,), unnormalised. Only read."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms, of the model's own distribution: before penalties, temperature and filters."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Bounds and meanings as in sampling.proto; the gateway validates, `sampling_from_proto` checks again."""

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


Array = NDArray[np.float64]
Ids = NDArray[np.intp]

_FIRST_NUCLEUS = 64  # ids tried first for top-p; most nuclei are smaller


def sample(logits: Scores, params: SamplingParams, index: int, history: History) -> Sampled:
    """Choose the token at output `index`, which is `len(history.output)` for a sequence without holes.

    Ids in `params` that lie outside the vocabulary can't be chosen and have no effect.
    """
    adjusted = _adjusts(params, index)
    if params.temperature == 0 and not adjusted and params.top_logprobs is None:
        return Sampled(logits.argmax(), None)
    raw = logits.array().astype(np.float64)
    scores = _adjust(raw, params, index, history) if adjusted else raw
    token = int(np.argmax(scores)) if params.temperature == 0 else _draw(scores, params, index)
    logprobs = None if params.top_logprobs is None else token_logprobs(raw, token, params.top_logprobs)
    return Sampled(token, logprobs)


def token_logprobs(raw: Array, token: int, top: int) -> TokenLogprobs:
    """Logprobs of `token` and of the `top` likeliest tokens under softmax(raw), shape (vocabulary,)."""
    greatest = raw.max()
    log_total = greatest + np.log(np.exp(raw - greatest).sum())
    likeliest = _best(raw, min(top, raw.size))
    return TokenLogprobs(float(raw[token] - log_total), tuple((int(i), float(raw[i] - log_total)) for i in likeliest))


def _adjusts(params: SamplingParams, index: int) -> bool:
    """Whether anything but temperature and filters changes the logits."""
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
        or bool(params.logit_bias)
        or _withholds_eos(params, index)
    )


def _withholds_eos(params: SamplingParams, index: int) -> bool:
    # Under ignore_eos an EOS ends nothing, so there is nothing to withhold it for.
    return index < params.min_tokens and bool(params.eos_ids) and not params.ignore_eos


def _adjust(raw: Array, params: SamplingParams, index: int, history: History) -> Array:
    """A changed copy of `raw`: penalties, then bias, then EOS withheld.

    The repetition penalty is that of CTRL (Keskar et al. 2019, section 4.1) with Hugging Face's mending for negative logits: seen
    ids' logits are divided by it where positive and multiplied where not. Presence and frequency penalties are OpenAI's:
    logit -= count * frequency + (count > 0) * presence.
    """
    scores = raw.copy()
    output = np.asarray(history.output, dtype=np.intp)
    if params.repetition_penalty != 1:
        seen = np.unique(np.concatenate((np.asarray(history.prompt, dtype=np.intp), output)))
        before = scores[seen]
        scores[seen] = np.where(before > 0, before / params.repetition_penalty, before * params.repetition_penalty)
    if params.presence_penalty != 0 or params.frequency_penalty != 0:
        made, counts = np.unique(output, return_counts=True)
        scores[made] -= counts * params.frequency_penalty + params.presence_penalty
    for token, bias in params.logit_bias:
        if token < scores.size:
            scores[token] += bias
    if _withholds_eos(params, index):
        scores[[token for token in params.eos_ids if token < scores.size]] = -np.inf
    return scores


def _draw(scores: Array, params: SamplingParams, index: int) -> int:
    """One draw from softmax(scores / temperature) over the ids the filters leave.

    The Gumbel-max trick: argmax of (log-probability + Gumbel noise) is distributed as the probabilities are.
    """
    # The greatest becomes 0 before the division, so that no temperature however small can overflow to inf - inf.
    scaled = (scores - scores.max()) / params.temperature
    ids = _kept(scaled, params)
    return int(ids[np.argmax(scaled[ids] + gumbel_noise(params.seed, index, ids))])


def _kept(scaled: Array, params: SamplingParams) -> Ids:
    """Ids in ascending order that top-k, then top-p, then min-p leave; `scaled` has its maximum at 0.

    Each filter sees the distribution renormalised over what the one before it left. At least one id is left.
    """
    limit = min(params.top_k, scaled.size) if params.top_k else scaled.size
    if params.top_p < 1:
        ids = np.sort(_nucleus(scaled, limit, params.top_p))
    elif limit < scaled.size:
        ids = np.sort(_best(scaled, limit))
    else:
        ids = np.arange(scaled.size)
    if params.min_p > 0:
        # Relative to the likeliest, whose weight is exp(0); a common factor such as renormalisation changes nothing.
        ids = ids[np.exp(scaled[ids]) >= params.min_p]
    return ids


def _nucleus(scaled: Array, limit: int, top_p: float) -> Ids:
    """The fewest of the `limit` likeliest ids whose share of those ids' probability reaches `top_p`, likeliest first."""
    whole = scaled if limit == scaled.size else scaled[_best(scaled, limit)]
    target = top_p * np.exp(whole).sum()
    width = min(_FIRST_NUCLEUS, limit)
    # Sorting a whole vocabulary takes milliseconds. A prefix of it sums to the same figures, so widening changes no result.
    while True:
        ids = _best(scaled, width)
        mass = np.cumsum(np.exp(scaled[ids]))
        if mass[-1] >= target or width == limit:
            return ids[: int(np.searchsorted(mass, target)) + 1]
        width = min(width * 8, limit)


def _best(scores: Array, count: int) -> Ids:
    """The ids of the `count` greatest scores, greatest first, the lowest id first among equals."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    ids = np.flatnonzero(scores >= threshold)
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def gumbel_noise(seed: int, index: int, ids: Ids) -> Array:
    """Standard Gumbel noise for `ids`, in ascending order; an id's noise depends on (seed, index, id) alone.

    Philox is counter based: key and counter name the stream, with no state to carry between instances. Its raw 64-bit words are
    taken, not a Generator's numbers, because NumPy keeps only a bit generator's words the same between versions and platforms.
    They become uniforms in the open interval (0, 1) by exact arithmetic. What is left to the platform is the logarithm's last
    bit, which can change a choice only where two scores agree to about 15 digits.
    """
    # The low word of the counter runs over the ids; the index sits above it, so streams of different indices never overlap.
    stream = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=np.array([0, index, 0, 0], np.uint64))
    words = stream.random_raw(int(ids[-1]) + 1)[ids]
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))
