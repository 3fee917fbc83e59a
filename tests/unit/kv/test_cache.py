from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from pdd.identity import RequestId
from pdd.kv.cache import CacheChanges, Prefix, PrefixCache, prefix_of
from pdd.kv.hashing import chain_hashes, common_blocks
from pdd.kv.store import BlockStore, Lease, NoMemory

ONE, OTHER = RequestId(1, 1), RequestId(1, 2)
BLOCK_TOKENS, BLOCK_BYTES = 2, 10


def prefix(*blocks: int, salt: str = "") -> Prefix:
    """A prompt of one block per number."""
    return prefix_of(tuple(number for block in blocks for number in (block, block)), BLOCK_TOKENS, salt)


def payload(block: int) -> bytes:
    return bytes([block]) * BLOCK_BYTES


def cache_of(budget_blocks: int = 100, limit_blocks: int = 100) -> PrefixCache:
    return PrefixCache(BlockStore(budget_blocks * BLOCK_BYTES), BLOCK_TOKENS, limit_blocks * BLOCK_BYTES)


def made(cache: PrefixCache, blocks: tuple[int, ...], owner: RequestId = ONE) -> Lease:
    """Blocks that an engine has just made, sealed."""
    lease = cache.reserve(owner, len(blocks), BLOCK_BYTES, 10.0)
    for index, block in enumerate(blocks):
        cache.store.put(lease, index, payload(block))
    cache.store.seal(lease)
    return lease


def kept(cache: PrefixCache, *blocks: int) -> Prefix:
    """Blocks that only the cache holds."""
    named = prefix(*blocks)
    lease = made(cache, blocks)
    cache.keep(lease, named, 0)
    cache.store.release(lease)
    return named


def test_what_was_kept_is_found_and_read_through_a_pin() -> None:
    cache = cache_of()
    named = kept(cache, 1, 2, 3)
    assert (cache.match(named), cache.match(prefix(1, 2, 4)), cache.match(prefix(2, 3))) == (3, 2, 0)
    assert (cache.store.leased_bytes, cache.store.used_bytes, cache.used_bytes, cache.blocks) == (0, 30, 30, 3)
    lease = cache.pin(OTHER, named, 2, 10.0)
    assert cache.store.read(lease) == (payload(1), payload(2))
    assert (cache.store.leased_bytes, cache.store.used_bytes) == (20, 30)


def test_tenants_do_not_see_each_others_blocks() -> None:
    cache = cache_of()
    kept(cache, 1, 2)
    assert cache.match(prefix(1, 2, salt="another")) == 0


def test_a_forged_hash_over_other_ids_misses() -> None:
    cache = cache_of()
    true = kept(cache, 1, 2)
    forged = Prefix(true.hashes, prefix(1, 9).ids)
    assert cache.match(forged) == 1
    with pytest.raises(ValueError, match="2 blocks can't be pinned, 1 are cached"):
        cache.pin(OTHER, forged, 2, 10.0)
    lease = made(cache, (1, 9), OTHER)
    assert cache.keep(lease, forged, 0) == 0  # the hash is taken, by another content
    assert cache.match(true) == 2


def test_a_known_block_after_another_parent_misses() -> None:
    cache = cache_of()
    true = kept(cache, 1, 2)
    assert cache.match(Prefix(true.hashes[1:], true.ids[BLOCK_TOKENS:])) == 0


def test_nothing_is_kept_after_a_hole() -> None:
    cache = cache_of()
    lease = made(cache, (2, 3))
    assert cache.keep(lease, prefix(1, 2, 3), 1) == 0
    kept(cache, 1)
    assert cache.keep(lease, prefix(1, 2, 3), 1) == 2


def test_only_leading_sealed_blocks_are_kept() -> None:
    cache = cache_of()
    lease = cache.reserve(ONE, 3, BLOCK_BYTES, 10.0)
    cache.store.put(lease, 0, payload(1))
    cache.store.put(lease, 1, payload(2))
    cache.store.seal(lease, 1)
    assert cache.keep(lease, prefix(1, 2, 3), 0) == 1
    cache.store.seal(lease, 2)
    assert cache.keep(lease, prefix(1, 2, 3), 0) == 1


def test_what_is_cached_already_is_not_kept_twice() -> None:
    cache = cache_of()
    kept(cache, 1, 2)
    lease = made(cache, (1, 2, 3), OTHER)
    assert cache.keep(lease, prefix(1, 2, 3), 0) == 1
    cache.store.release(lease)
    assert (cache.blocks, cache.store.used_bytes) == (3, 30)


def test_the_oldest_goes_first_and_a_leaf_before_what_it_follows() -> None:
    cache = cache_of(limit_blocks=4)
    old, recent = kept(cache, 1, 2), kept(cache, 5, 6)
    kept(cache, 7)
    assert (cache.match(old), cache.match(recent)) == (1, 2)
    cache.store.release(cache.pin(OTHER, old, 1, 10.0))  # touched: now the other one is the oldest
    kept(cache, 8)
    assert (cache.match(old), cache.match(recent)) == (1, 1)


def test_a_pinned_block_and_all_before_it_stay() -> None:
    cache = cache_of(limit_blocks=3)
    named = kept(cache, 1, 2, 3)
    pinned = cache.pin(OTHER, named, 3, 10.0)
    kept(cache, 7, 8)
    assert (cache.match(named), cache.match(prefix(7, 8))) == (3, 0)
    cache.store.release(pinned)
    kept(cache, 7, 8)
    assert (cache.match(named), cache.match(prefix(7, 8))) == (1, 2)


def test_what_does_not_fit_the_limit_is_kept_as_far_as_it_does() -> None:
    cache = cache_of(limit_blocks=2)
    assert cache.match(kept(cache, 1, 2, 3)) == 2
    assert cache_of(limit_blocks=0).match(kept(cache_of(limit_blocks=0), 1)) == 0


def test_a_reservation_takes_what_only_the_cache_holds() -> None:
    cache = cache_of(budget_blocks=4)
    named = kept(cache, 1, 2, 3)
    pinned = cache.pin(OTHER, named, 1, 10.0)
    with pytest.raises(NoMemory, match="4 blocks need 40 bytes and 30 of 40 are free"):
        cache.reserve(ONE, 4, BLOCK_BYTES, 10.0)
    assert cache.match(named) == 3
    cache.reserve(ONE, 2, BLOCK_BYTES, 10.0)
    assert cache.match(named) == 2
    cache.store.release(pinned)
    with pytest.raises(NoMemory, match="more than the whole budget"):
        cache.reserve(ONE, 5, BLOCK_BYTES, 10.0)


def test_payloads_are_kept_after_what_is_cached_and_nowhere_else() -> None:
    cache = cache_of(budget_blocks=4)
    named = prefix(1, 2, 3)
    assert cache.keep_payloads(ONE, named, 1, [payload(2)], BLOCK_BYTES) == 0
    kept(cache, 1)
    assert cache.keep_payloads(ONE, named, 1, [payload(2), payload(3)], BLOCK_BYTES) == 2
    assert cache.keep_payloads(ONE, named, 1, [payload(2), payload(3)], BLOCK_BYTES) == 0
    assert cache.store.read(cache.pin(OTHER, named, 3, 10.0)) == (payload(1), payload(2), payload(3))
    more = prefix(1, 2, 3, 4, 5)
    assert cache.keep_payloads(ONE, more, 3, [payload(4), payload(5)], BLOCK_BYTES) == 0  # no room
    assert cache.store.leases == 1


def test_making_room_for_payloads_does_not_take_what_they_follow() -> None:
    cache = cache_of(budget_blocks=3)
    kept(cache, 1)
    kept(cache, 8, 9)
    assert cache.keep_payloads(ONE, prefix(1, 2, 3), 1, [payload(2), payload(3)], BLOCK_BYTES) == 2
    assert cache.match(prefix(1, 2, 3)) == 3


def test_changes_are_net_and_told_once() -> None:
    cache = cache_of(limit_blocks=2)
    first = kept(cache, 1, 2)
    assert cache.take_changes() == CacheChanges(first.hashes, ())
    second = kept(cache, 3)
    assert cache.take_changes() == CacheChanges(second.hashes, first.hashes[1:])
    kept(cache, 1, 2)
    kept(cache, 3)
    assert cache.take_changes() == CacheChanges((), ())
    cache.clear()
    assert set(cache.take_changes().removed) == {*first.hashes[:1], *second.hashes}
    assert (cache.hashes(), cache.store.used_bytes) == (frozenset(), 0)


@pytest.mark.parametrize(
    ("one", "other", "common"), [((), (1,), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 2, 4, 5), 2), ((9,), (1, 2), 0)]
)
def test_common_blocks_are_the_leading_equal_hashes(one: tuple[int, ...], other: tuple[int, ...], common: int) -> None:
    named = [chain_hashes(tuple(i for block in ids for i in (block, block)), BLOCK_TOKENS, "") for ids in (one, other)]
    assert common_blocks(*named) == common_blocks(*reversed(named)) == common


@dataclass(eq=False)
class Held:
    lease: Lease
    payloads: tuple[bytes, ...]


BLOCKS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)


class CacheMachine(RuleBasedStateMachine):
    """Whatever is done in whatever order: never a hole, a foreign byte, a lost one or a lease that dangles."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache_of(budget_blocks=12, limit_blocks=7)
        self.leases: list[Held] = []
        self.replayed: set[int] = set()
        self.contents: dict[int, tuple[tuple[int, ...], int]] = {}  # the blocks up to a hash, and the block before it

    def learn(self, blocks: tuple[int, ...]) -> Prefix:
        named = prefix(*blocks)
        for index, name in enumerate(named.hashes):
            self.contents[name] = (blocks[: index + 1], named.hashes[index - 1] if index else 0)
        return named

    @property
    def fixed_bytes(self) -> int:
        """What is leased, and what is cached before something that is."""
        fixed = {id(block) for held in self.leases for block in self.cache.store._held[held.lease.number].blocks}
        for entry in self.cache._entries.values():
            above = entry if entry.block.leases else None
            while above is not None:
                fixed.add(id(above.block))
                above = above.parent
        return len(fixed) * BLOCK_BYTES

    def lease(self, lease: Lease, payloads: tuple[bytes, ...]) -> Held:
        self.leases.append(Held(lease, payloads))
        return self.leases[-1]

    @rule(target=held, blocks=BLOCKS, first=st.integers(0, 3), sealed=st.integers(0, 6))
    def make(self, blocks: tuple[int, ...], first: int, sealed: int) -> object:
        """Reserve, fill and keep; some of it may not be sealed yet."""
        named, cache, count = self.learn(blocks), self.cache, max(0, len(blocks) - first)
        before = cache.match(named)
        try:
            lease = cache.reserve(ONE, count, BLOCK_BYTES, 1.0)
        except NoMemory:
            assert count * BLOCK_BYTES > cache.store.budget_bytes - self.fixed_bytes
            return multiple()
        for index, block in enumerate(blocks[first:]):
            cache.store.put(lease, index, payload(block))
        sealed = min(sealed, count)
        cache.store.seal(lease, sealed)
        still = cache.match(named)  # reserving may have evicted some
        assert still <= before
        new = cache.keep(lease, named, min(first, len(blocks)))
        after = cache.match(named)
        if still < first:
            assert (new, after) == (0, still)
        else:
            assert after == still + new <= max(still, first + sealed)
        return self.lease(lease, tuple(map(payload, blocks[first : first + sealed])))

    @rule(blocks=BLOCKS, first=st.integers(0, 3))
    def keep_payloads(self, blocks: tuple[int, ...], first: int) -> None:
        named = self.learn(blocks)
        before, given = self.cache.match(named), [payload(block) for block in blocks[first:]]
        kept = self.cache.keep_payloads(OTHER, named, first, given, BLOCK_BYTES)
        assert self.cache.match(named) == before + kept

    @rule(target=held, blocks=BLOCKS, data=st.data())
    def pin(self, blocks: tuple[int, ...], data: st.DataObject) -> Held:
        named = self.learn(blocks)
        count = data.draw(st.integers(0, self.cache.match(named)))
        return self.lease(self.cache.pin(OTHER, named, count, 1.0), tuple(map(payload, blocks[:count])))

    @rule(held=consumes(held))
    def release(self, held: Held) -> None:
        self.cache.store.release(held.lease)
        self.leases.remove(held)

    @rule(blocks=BLOCKS, other=BLOCKS)
    def forge(self, blocks: tuple[int, ...], other: tuple[int, ...]) -> None:
        """True hashes over other ids hit no further than the ids agree."""
        named, ids = prefix(*blocks), prefix(*other).ids
        agree = next((i for i, pair in enumerate(zip(blocks, other, strict=False)) if pair[0] != pair[1]), len(other))
        assert self.cache.match(Prefix(named.hashes, ids)) <= agree

    @rule()
    def clear(self) -> None:
        self.cache.clear()

    @rule()
    def take_changes(self) -> None:
        changes = self.cache.take_changes()
        assert not set(changes.added) & (self.replayed | set(changes.removed))
        assert set(changes.removed) <= self.replayed
        self.replayed = (self.replayed | set(changes.added)) - set(changes.removed)
        assert self.replayed == self.cache.hashes()

    @invariant()
    def is_prefix_closed(self) -> None:
        names = self.cache.hashes()
        assert all(self.contents[name][1] in {0, *names} for name in names)
        assert all(self.cache.match(prefix(*self.contents[name][0])) == len(self.contents[name][0]) for name in names)

    @invariant()
    def leased_blocks_are_there_and_whole(self) -> None:
        for held in self.leases:
            blocks = self.cache.store.sealed(held.lease)
            assert tuple(block.payload for block in blocks) == held.payloads

    @invariant()
    def bytes_are_exact_and_within_both_bounds(self) -> None:
        cache, store = self.cache, self.cache.store
        leased = {id(block): block for held in self.leases for block in store._held[held.lease.number].blocks}
        cached = {id(entry.block): entry.block for entry in cache._entries.values()}
        assert cache.used_bytes == cache.blocks * BLOCK_BYTES <= cache.limit_bytes
        assert store.leased_bytes == len(leased) * BLOCK_BYTES
        assert store.used_bytes == len(leased | cached) * BLOCK_BYTES <= store.budget_bytes

    @invariant()
    def no_block_is_older_than_one_that_follows_it(self) -> None:
        places = {id(entry): place for place, entry in enumerate(self.cache._entries.values())}
        for entry in self.cache._entries.values():
            assert entry.parent is None or places[id(entry.parent)] > places[id(entry)]


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def in_blocks(cache: PrefixCache) -> tuple[int, int, int, int]:
    """Used, leased, filled and sealed; of the last three each holds the next."""
    store = cache.store
    sizes = store.used_bytes, store.leased_bytes, store.filled_bytes, store.sealed_bytes
    used, leased, filled, sealed = (size // BLOCK_BYTES for size in sizes)
    return used, leased, filled, sealed


def test_a_block_is_filled_then_sealed_and_counts_once_however_many_hold_it() -> None:
    cache = cache_of(limit_blocks=3)
    lease = cache.reserve(ONE, 3, BLOCK_BYTES, 10.0)
    assert in_blocks(cache) == (3, 3, 0, 0)
    for index in range(2):
        cache.store.put(lease, index, payload(index))
    cache.store.seal(lease, 1)
    cache.store.seal(lease, 1)
    assert in_blocks(cache) == (3, 3, 2, 1)
    cache.keep(lease, prefix(0, 1, 2), 0)
    again = cache.pin(OTHER, prefix(0), 1, 10.0)
    assert in_blocks(cache) == (3, 3, 2, 1)
    cache.store.release(lease)
    assert in_blocks(cache) == (1, 1, 1, 1)
    cache.store.release(again)
    assert in_blocks(cache) == (1, 0, 0, 0)
    assert cache.store.read(cache.pin(OTHER, prefix(0), 1, 10.0)) == (payload(0),)
    assert in_blocks(cache) == (1, 1, 1, 1)


def test_what_makes_way_is_counted() -> None:
    cache = cache_of(limit_blocks=3)
    kept(cache, 1, 2)
    kept(cache, 5, 6, 7)
    assert cache.evicted_blocks == 2
