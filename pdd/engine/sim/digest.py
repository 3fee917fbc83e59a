"""The function a sim computes: the KV of a token, and the next token from all KV before it.

Used by `model` and, independently of it, by `reference`. Pure. Hashes are xxh3 with 64 bits.

The likeliest token leads by a margin that differs from place to place, down to next to nothing; so there are near ties, at which
an engine with other numerics, which `Noise` stands for, chooses otherwise. The KV is the same under any noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from pdd.engine.sim.vocabulary import Vocabulary

KV_BYTES = 8  # of one token, whatever it declares to be
ROOT = bytes(KV_BYTES)  # stands before the first token
_EOS_ONE_IN = 512
_SPREAD = 6.0  # logits of tokens the sim may say lie in [0, _SPREAD)
_UNSAID = -30.0  # and those of all others lower by this
_MARGINS = 1024  # the likeliest leads by k / _MARGINS over _SPREAD, k from 1 on


@dataclass(frozen=True, slots=True)
class Noise:
    """How an instance's logits differ from the exact ones: by at most `amplitude` each, always alike for the same KV and seed."""

    amplitude: float = 0.0
    seed: int = 0


NO_NOISE = Noise()


def token_kv(parent: bytes, token: int) -> bytes:
    """The KV of `token` after the token whose KV is `parent`."""
    return xxhash.xxh3_64_digest(parent + token.to_bytes(4, "little"))


def choose(kv_hash: int, vocabulary: Vocabulary, noise: Noise = NO_NOISE) -> int:
    """The likeliest next token where `kv_hash` is the hash over all KV: a word mostly, sometimes the end.

    Costs the same whatever the vocabulary's size, but under noise, where all logits have to be looked at.
    """
    if noise.amplitude:
        return int(logits(kv_hash, vocabulary, noise).argmax())
    if kv_hash % _EOS_ONE_IN == 0:
        return vocabulary.eos_id
    return vocabulary.choices[kv_hash // _EOS_ONE_IN % len(vocabulary.choices)]


def logits(kv_hash: int, vocabulary: Vocabulary, noise: Noise = NO_NOISE) -> NDArray[np.float32]:
    """Shape (vocabulary,); the greatest is that of `choose`."""
    scores = _uniform(kv_hash, vocabulary.size) * np.float32(_SPREAD)
    said = np.zeros(vocabulary.size, dtype=np.bool_)
    said[list(vocabulary.choices)] = True
    scores[~said] += np.float32(_UNSAID)
    # The hash's high bits, since `choose` looks at the low ones.
    scores[choose(kv_hash, vocabulary)] = _SPREAD + ((kv_hash >> 32) % _MARGINS + 1) / _MARGINS
    if noise.amplitude:
        own = xxhash.xxh3_64_intdigest(kv_hash.to_bytes(8, "little"), seed=noise.seed)
        scores += (2 * _uniform(own, vocabulary.size) - 1) * np.float32(noise.amplitude)
    return scores


def _uniform(seed: int, size: int) -> NDArray[np.float32]:
    """Uniform in [0, 1): splitmix64 (Steele, Lea, Flood 2014) of seed + index, the same on every machine."""
    mixed = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(40)) * np.float32(2.0**-24)).astype(np.float32)
