"""The offline reference, held against the mesh's own prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdd.identity import RequestId
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.kv.hashing import chain_hashes
from pdd.kv.store import BlockStore
from virtual.workloads.base import Ids
from virtual.workloads.reference import LruReference, Reference

BLOCK_TOKENS, BLOCK_BYTES = 2, 8
OWNER = RequestId(1, 1, 0)


@given(st.integers(1, 6), st.lists(st.lists(st.integers(0, 1), max_size=16).map(tuple), max_size=30))
def test_it_holds_exactly_what_the_mesh_caches_hold(capacity: int, prompts: list[Ids]) -> None:
    cache = PrefixCache(BlockStore(BLOCK_BYTES * 100), BLOCK_TOKENS, BLOCK_BYTES * capacity)
    reference = LruReference(capacity)
    for ids in prompts:
        prefix = prefix_of(ids, BLOCK_TOKENS, "")
        matched = cache.match(prefix)
        assert reference.match(prefix.hashes) == matched
        cache.store.release(cache.pin(OWNER, prefix, matched, 1.0))
        missing = len(prefix.hashes) - matched
        cache.keep_payloads(OWNER, prefix, matched, [bytes(BLOCK_BYTES)] * missing, BLOCK_BYTES)
        reference.keep(prefix.hashes)
        assert len(reference) == cache.blocks
    for name in {name for ids in prompts for name in chain_hashes(ids, BLOCK_TOKENS, "")}:
        assert (name in reference) == (name in cache.hashes())


def test_prefill_computes_the_last_token_whatever_is_cached_and_main_has_all_full_blocks() -> None:
    reference = Reference(BLOCK_TOKENS)
    reference.asked((1, 2, 3, 4))
    hits = reference.asked((1, 2, 3, 4))
    assert (hits.prompt, hits.prefill, hits.main) == (4, 2, 4)
    assert (reference.tally.prompt, reference.tally.prefill, reference.tally.main) == (8, 2, 4)
    assert reference.tally.main_rate == 0.5


def test_answers_enter_mains_cache_up_to_the_token_that_was_never_computed() -> None:
    reference = Reference(BLOCK_TOKENS)
    reference.asked((1, 2, 3))
    reference.answered((1, 2, 3), (4, 5, 6))
    hits = reference.asked((1, 2, 3, 4, 5, 6, 7))
    assert (hits.prefill, hits.main) == (2, 4)


def test_answers_stay_out_where_main_does_not_keep_them() -> None:
    reference = Reference(BLOCK_TOKENS, keeps_output=False)
    reference.asked((1, 2, 3))
    reference.answered((1, 2, 3), (4, 5, 6))
    assert reference.asked((1, 2, 3, 4, 5, 6, 7)).main == 2


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = LruReference(3)
    cache.keep((1, 2))
    cache.keep((3,))
    cache.keep((1,))
    cache.keep((4,))
    assert [cache.match(hashes) for hashes in ((1, 2), (3,), (4,))] == [1, 1, 1]


def test_a_reference_without_room_hits_nothing() -> None:
    reference = Reference(BLOCK_TOKENS, 0, 0)
    reference.asked((1, 2, 3, 4))
    assert reference.asked((1, 2, 3, 4)).main == 0
    assert reference.tally.prefill_rate == 0.0
