from __future__ import annotations

import pytest

from pdd.engine.base import KvSource
from pdd.identity import RequestId
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.kv.store import BlockStore, NoMemory
from services.prefill.blocks import PromptBlocks
from tests.unit.transfer.parts import BLOCK_TOKENS, SALT, layout, payloads

ONE, OTHER = RequestId(1, 1), RequestId(1, 2)
MADE = payloads(8)


def cache_of(budget_blocks: int = 100, limit_blocks: int = 100) -> PrefixCache:
    return PrefixCache(BlockStore(16 * budget_blocks), BLOCK_TOKENS, 16 * limit_blocks)


def blocks_of(cache: PrefixCache, tokens: int, owner: RequestId = ONE) -> PromptBlocks:
    ids = tuple(range(tokens))
    return PromptBlocks(cache, owner, prefix_of(ids, BLOCK_TOKENS, SALT), tokens, layout())


def kept(cache: PrefixCache, blocks: int) -> None:
    """Another job has made that many blocks."""
    job = blocks_of(cache, blocks * BLOCK_TOKENS + 1, OTHER)
    job.reserve(9.0)
    job.add(0, MADE[:blocks])
    job.keep()
    job.release()


def test_what_is_cached_is_pinned_and_need_not_be_made() -> None:
    cache = cache_of()
    kept(cache, 3)
    job = blocks_of(cache, 5 * BLOCK_TOKENS + 1)
    assert job.pin(9.0) == tuple(MADE[:3])
    job.reserve(9.0)
    assert job.source() == KvSource(tuple(MADE[:3]))
    assert cache.store.leased_bytes == 5 * 16
    job.add(3, MADE[3:5])
    job.keep()
    job.release()
    assert (cache.blocks, cache.store.leased_bytes, cache.store.leases) == (5, 0, 0)


@pytest.mark.parametrize(("tokens", "usable"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_last_token_is_never_taken_from_a_cache(tokens: int, usable: int) -> None:
    cache = cache_of()
    kept(cache, 3)
    job = blocks_of(cache, tokens)
    assert (len(job.pin(9.0)), job.cached) == (usable, usable)
    assert (job.source() is None) == (usable == 0)


def test_a_pin_grows_and_gives_out_only_what_is_new() -> None:
    cache = cache_of()
    kept(cache, 2)
    job = blocks_of(cache, 20)
    assert job.pin(9.0) == tuple(MADE[:2])
    assert job.pin(9.0) == ()
    kept(cache, 4)
    assert job.pin(9.0) == tuple(MADE[2:4])
    assert (job.cached, cache.store.leases) == (4, 1)
    cache.clear()
    assert job.pin(9.0) == ()
    assert job.source() == KvSource(tuple(MADE[:4]))


def test_what_was_made_of_a_prompt_is_cached_though_the_rest_never_comes() -> None:
    cache = cache_of()
    job = blocks_of(cache, 20)
    job.reserve(9.0)
    job.add(0, MADE[:2])
    job.keep()
    job.add(2, MADE[2:3])
    job.keep()
    job.release()
    assert (cache.blocks, cache.store.used_bytes) == (3, 3 * 16)


def test_common_blocks_are_counted_as_far_as_they_can_be_used() -> None:
    cache = cache_of()
    short, long = blocks_of(cache, 8), blocks_of(cache, 30)
    assert (short.common(long), long.common(short)) == (1, 2)
    nothing = cache_of(limit_blocks=0)
    assert blocks_of(nothing, 30).common(blocks_of(nothing, 30)) == 0


def test_a_prompt_that_does_not_fit_beside_what_is_held_is_refused_and_what_is_only_cached_makes_way() -> None:
    cache = cache_of(budget_blocks=4)
    kept(cache, 4)
    other = PromptBlocks(cache, ONE, prefix_of((9,) * 12, BLOCK_TOKENS, SALT), 12, layout())
    other.reserve(9.0)
    assert cache.blocks == 1
    with pytest.raises(NoMemory):
        blocks_of(cache, 20, OTHER).reserve(9.0)
