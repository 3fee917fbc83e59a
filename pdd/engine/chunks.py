"""How much of a prompt the next step prefills.

Called by `schedule` for one prefill after another. Pure. A step costs a reading of the weights however few tokens are in it, so
what throughput loses, it loses in steps that are nearly empty: a prompt a little longer than a chunk would leave a tiny last one.
Two things avoid them:

    near-equal chunks   a prompt goes in the fewest chunks there can be, all about as long: 520 tokens as 256 + 264, not 512 + 8
    shared steps        what one prompt leaves of a step, the next ones take: 256 of a and 256 of b, then 264 of a and 248 of b

The first costs no prompt a step: it has its KV in as few steps as if its chunks were full. Chunks end on the nearest block's edge
where they can, so that no block waits for a few tokens more, and nothing under a block is left over for want of as little room.
"""

from __future__ import annotations


def next_chunk(owed: int, computed: int, room: int, most: int, chunk_tokens: int, block_tokens: int) -> int:
    """Tokens of the next chunk of a prompt that still owes `owed` after `computed`; at least 1.

    `room` (at least 1) is what is left of the step for prefills, `most` what ending on an edge may make of it.
    """
    chunks = -(-owed // chunk_tokens)
    count = min(-(-owed // chunks), room)
    past_edge = (computed + count) % block_tokens
    if count == owed or not past_edge:
        return count
    up = min(count + block_tokens - past_edge, owed)
    if (2 * past_edge >= block_tokens or up == owed) and up <= most:
        return up
    return count - past_edge if past_edge < count else count
