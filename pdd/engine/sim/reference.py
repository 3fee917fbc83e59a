"""What a sim answers, computed without an engine: the expectation of tests.

Called by tests alone. Shares with `model` only the function the sim computes; no slots, blocks, batches or steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from pdd.engine.sim.digest import NO_NOISE, ROOT, Noise, choose, token_kv
from pdd.engine.sim.vocabulary import sim_vocabulary


def continuation(prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False, noise: Noise = NO_NOISE) -> list[int]:
    """The greedy answer to `prompt`: `max_tokens` ids, or fewer where the end of the sequence comes first."""
    vocabulary = sim_vocabulary()
    kv_hash, kv = xxhash.xxh3_64(), ROOT
    for token in prompt:
        kv = token_kv(kv, token)
        kv_hash.update(kv)
    output: list[int] = []
    while len(output) < max_tokens:
        token = choose(kv_hash.intdigest(), vocabulary, noise)
        if token == vocabulary.eos_id and not ignore_eos:
            break
        output.append(token)
        kv = token_kv(kv, token)
        kv_hash.update(kv)
    return output


def prompt_blocks(prompt: Sequence[int], block_tokens: int = 16) -> tuple[bytes, ...]:
    """The payloads of a prompt's full blocks, unpadded."""
    kv, chain = ROOT, []
    for token in prompt:
        kv = token_kv(kv, token)
        chain.append(kv)
    full = len(prompt) // block_tokens
    return tuple(b"".join(chain[block * block_tokens : (block + 1) * block_tokens]) for block in range(full))
