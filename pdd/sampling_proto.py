"""Sampling parameters and logprobs to and from their messages.

Called by the gateway and by every servicer. `sampling_from_proto` is where a service stops trusting its peer: it checks every
bound that sampling.proto states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pdd.sampling import SamplingParams, TokenLogprobs
from pdd.v1 import sampling_pb2

MAX_LOGIT_BIASES = 1024
MAX_EOS_IDS = 16
MAX_TOP_LOGPROBS = 20


def sampling_to_proto(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """The message of `params`. Its floats have 32 bits: see `sampling_from_proto`."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=[sampling_pb2.LogitBias(token=token, bias=bias) for token, bias in params.logit_bias],
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        eos_ids=params.eos_ids,
        top_logprobs=params.top_logprobs,
    )


def sampling_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """The parameters of a message. Raises ValueError that names the field whose bound is broken.

    Each float becomes the shortest decimal that its 32 bits stand for: a client's 0.8 is 0.8 again, and not 0.800000012, in every
    service and in a reference run that never met a message.
    """
    _check_sizes(message)
    return SamplingParams(
        temperature=_bounded("temperature", message.temperature, 0, 2),
        top_k=message.top_k,
        top_p=_above_zero("top_p", message.top_p, 1),
        min_p=_bounded("min_p", message.min_p, 0, 1),
        seed=message.seed,
        presence_penalty=_bounded("presence_penalty", message.presence_penalty, -2, 2),
        frequency_penalty=_bounded("frequency_penalty", message.frequency_penalty, -2, 2),
        repetition_penalty=_above_zero("repetition_penalty", message.repetition_penalty, 10),
        logit_bias=_logit_bias(message.logit_bias),
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        eos_ids=tuple(message.eos_ids),
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_tokens=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def logprobs_from_proto(message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    """Raises ValueError where the two packed arrays differ in length."""
    if len(message.top_tokens) != len(message.top_logprobs):
        raise ValueError(f"top_logprobs: {len(message.top_logprobs)} values for {len(message.top_tokens)} top_tokens")
    return TokenLogprobs(message.logprob, tuple(zip(message.top_tokens, message.top_logprobs, strict=True)))


def _check_sizes(message: sampling_pb2.SamplingParams) -> None:
    if message.max_tokens < 1:
        raise ValueError("max_tokens: must be at least 1, is 0 or not set")
    if len(message.eos_ids) > MAX_EOS_IDS:
        raise ValueError(f"eos_ids: at most {MAX_EOS_IDS}, got {len(message.eos_ids)}")
    if message.top_logprobs > MAX_TOP_LOGPROBS:
        raise ValueError(f"top_logprobs: must lie in [0, {MAX_TOP_LOGPROBS}], is {message.top_logprobs}")
    if len(message.logit_bias) > MAX_LOGIT_BIASES:
        raise ValueError(f"logit_bias: at most {MAX_LOGIT_BIASES} entries, got {len(message.logit_bias)}")


def _logit_bias(entries: Sequence[sampling_pb2.LogitBias]) -> tuple[tuple[int, float], ...]:
    if len({entry.token for entry in entries}) != len(entries):
        raise ValueError("logit_bias: a token is named twice")
    return tuple((entry.token, _bounded(f"logit_bias[{entry.token}]", entry.bias, -100, 100)) for entry in entries)


def _bounded(name: str, value: float, low: float, high: float) -> float:
    # Written so that NaN, which compares false with everything, fails too.
    if not low <= value <= high:
        raise ValueError(f"{name}: must lie in [{low}, {high}], is {value}")
    return _shortest(value)


def _above_zero(name: str, value: float, high: float) -> float:
    if not 0 < value <= high:
        raise ValueError(f"{name}: must lie in (0, {high}], is {value}{' or not set' if value == 0 else ''}")
    return _shortest(value)


@lru_cache(1024)  # clients use few values, and this is most of what reading a message takes
def _shortest(value: float) -> float:
    """The 64-bit float with the fewest decimal digits among those that round to the 32-bit `value`."""
    return float(str(np.float32(value))) if math.isfinite(value) else value
