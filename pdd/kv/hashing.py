"""Chained block hashes: the name of a block's content and of everything before it.

Called by the gateway and prefill to say what a prompt needs, and by the receiver to check what it is offered. Equal in every
process and on every machine, so never Python's `hash`. xxh3 is no proof of equality: whoever takes a block for its hash's sake
compares token ids as well.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import xxhash

_U32 = next(code for code in "IL" if array(code).itemsize == 4)


def chain_hashes(ids: Sequence[int], block_tokens: int, salt: str) -> tuple[int, ...]:
    """Hashes of the full blocks of `ids`, 64 bits each; len(ids) // block_tokens of them.

    The hash of a block is xxh3-64 over its parent's hash (little-endian u64) and its token ids (little-endian u32 each); the
    parent of the first block is xxh3-64 over the salt in UTF-8. Raises ValueError for an id outside 0..2³²−1.
    """
    return chain_packed(pack_ids(ids), block_tokens, salt)


def chain_packed(packed: bytes, block_tokens: int, salt: str) -> tuple[int, ...]:
    """As `chain_hashes`, of ids that `pack_ids` has packed."""
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, got {block_tokens}")
    stride = 4 * block_tokens
    hash_of = xxhash.xxh3_64_intdigest
    parent = hash_of(salt.encode())
    hashes = []
    for start in range(0, len(packed) - stride + 1, stride):
        parent = hash_of(parent.to_bytes(8, "little") + packed[start : start + stride])
        hashes.append(parent)
    return tuple(hashes)


def common_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading hashes are equal. By bisection: where two chains agree at a block, they agree at all before it."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def pack_ids(ids: Sequence[int]) -> bytes:
    """Little-endian u32 each. Raises ValueError for an id outside 0..2³²−1."""
    try:
        packed = array(_U32, ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers in 0..2³²−1: {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
