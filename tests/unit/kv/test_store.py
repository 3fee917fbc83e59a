from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pdd.identity import RequestId
from pdd.kv.store import BlockStore, Lease, LeaseEnded, NoMemory

ONE, OTHER = RequestId(1, 1), RequestId(1, 2)


def filled(store: BlockStore, owner: RequestId = ONE, blocks: int = 2, expires_s: float = 10.0) -> Lease:
    lease = store.reserve(owner, blocks, 10, expires_s)
    for index in range(blocks):
        store.put(lease, index, bytes([index]) * 10)
    return lease


def test_a_range_is_reserved_whole_or_not_at_all() -> None:
    store = BlockStore(100)
    store.reserve(ONE, 7, 10, 1.0)
    with pytest.raises(NoMemory, match="4 blocks need 40 bytes and 30 of 100 are free"):
        store.reserve(OTHER, 4, 10, 1.0)
    assert store.used_bytes == 70
    store.reserve(OTHER, 3, 10, 1.0)
    assert store.usage == 1.0


def test_a_range_beyond_the_whole_budget_is_not_told_to_wait() -> None:
    with pytest.raises(NoMemory, match="more than the whole budget of 100: raise PDD_KV_BUDGET_MB") as caught:
        BlockStore(100).reserve(ONE, 11, 10, 1.0)
    assert "retry" not in str(caught.value)


def test_nothing_is_readable_before_it_is_sealed() -> None:
    store = BlockStore(100)
    lease = filled(store)
    with pytest.raises(ValueError, match="2 of 2 blocks are not sealed"):
        store.read(lease)
    store.seal(lease)
    assert store.read(lease) == (b"\0" * 10, b"\1" * 10)


def test_a_range_with_a_hole_is_not_sealed() -> None:
    store = BlockStore(100)
    lease = store.reserve(ONE, 3, 10, 1.0)
    store.put(lease, 0, b"0")
    store.put(lease, 2, b"2")
    with pytest.raises(ValueError, match="1 of 3 blocks are empty, the first is 1"):
        store.seal(lease)


def test_the_leading_blocks_can_be_sealed_before_the_rest_has_come() -> None:
    store = BlockStore(100)
    lease = store.reserve(ONE, 3, 10, 1.0)
    store.put(lease, 0, b"0")
    store.seal(lease, 1)
    assert [block.payload for block in store.sealed(lease)] == [b"0"]
    with pytest.raises(ValueError, match="1 of 2 blocks are empty, the first is 1"):
        store.seal(lease, 2)


@pytest.mark.parametrize("index", [0, -1, 2])
def test_a_block_is_filled_once_and_within_its_range(index: int) -> None:
    store = BlockStore(100)
    lease = filled(store)
    with pytest.raises(ValueError, match="filled already or out of range"):
        store.put(lease, index, b"late")


def test_a_shared_block_stays_until_its_last_holder_lets_go() -> None:
    store = BlockStore(100)
    pin = filled(store, blocks=3)
    store.seal(pin)
    relay, main = store.share(pin, ONE, 10.0), store.share(pin, ONE, 10.0, first_block=2)
    assert store.used_bytes == 30
    store.release(pin)
    assert store.read(main) == (b"\2" * 10,)
    store.release(relay)
    assert store.used_bytes == 10
    store.release(main)
    assert store.used_bytes == 0


def test_a_lease_that_expires_frees_its_blocks_and_is_reported_with_its_owner() -> None:
    store = BlockStore(100)
    early, late = filled(store, ONE, expires_s=1.0), filled(store, OTHER, expires_s=2.0)
    assert store.expire(0.9) == ()
    assert store.expire(1.0) == (early,)
    assert early.owner == ONE
    assert store.used_bytes == 20
    store.renew(late, 5.0)
    assert store.expire(4.9) == ()
    assert store.expire(5.0) == (late,)
    assert (store.used_bytes, store.leases) == (0, 0)


def test_a_late_user_of_an_ended_lease_gets_an_error_and_not_old_or_foreign_bytes() -> None:
    store = BlockStore(20)
    ended = filled(store)
    store.seal(ended)
    store.release(ended)
    taken = store.reserve(OTHER, 2, 10, 1.0)
    for use in (
        lambda: store.put(ended, 0, b"late"),
        lambda: store.read(ended),
        lambda: store.seal(ended),
        lambda: store.renew(ended, 9.0),
        lambda: store.share(ended, ONE, 9.0),
    ):
        with pytest.raises(LeaseEnded, match="released or has expired"):
            use()
    store.release(ended)
    assert store.used_bytes == 20
    store.put(taken, 0, b"own")


def test_a_lease_means_nothing_to_another_store() -> None:
    store, other = BlockStore(100), BlockStore(100)
    lease, same_number = filled(store), filled(other)
    assert lease == same_number
    other.release(lease)
    assert other.used_bytes == 20
    with pytest.raises(LeaseEnded):
        other.read(lease)


def test_a_range_of_no_blocks_costs_nothing_and_reads_as_nothing() -> None:
    store = BlockStore(1)
    lease = store.reserve(ONE, 0, 10, 1.0)
    store.seal(lease)
    assert store.read(lease) == ()
    assert store.used_bytes == 0


@pytest.mark.parametrize(("blocks", "block_bytes"), [(-1, 10), (1, 0)])
def test_a_senseless_range_is_refused(blocks: int, block_bytes: int) -> None:
    with pytest.raises(ValueError, match="can't be reserved"):
        BlockStore(100).reserve(ONE, blocks, block_bytes, 1.0)


@dataclass(eq=False)
class ModelBlock:
    charged: int
    payload: bytes | None = None
    sealed: bool = False


@dataclass(eq=False)
class ModelLease:
    lease: Lease
    blocks: list[ModelBlock]
    expires_s: float
    alive: bool = field(default=True)


class StoreMachine(RuleBasedStateMachine):
    """Bytes are never lost or counted twice, whatever the order of calls."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.store = BlockStore(100)
        self.model: list[ModelLease] = []
        self.now_s = 0.0

    def keep(self, lease: Lease, blocks: list[ModelBlock], expires_s: float) -> ModelLease:
        held = ModelLease(lease, blocks, expires_s)
        self.model.append(held)
        return held

    @property
    def expected_bytes(self) -> int:
        held = {id(block): block.charged for lease in self.model if lease.alive for block in lease.blocks}
        return sum(held.values())

    @rule(target=leases, blocks=st.integers(0, 6), size=st.integers(1, 30), lease_s=st.floats(0.1, 5))
    def reserve(self, blocks: int, size: int, lease_s: float) -> ModelLease:
        expires_s = self.now_s + lease_s
        if self.expected_bytes + blocks * size > 100:
            with pytest.raises(NoMemory):
                self.store.reserve(ONE, blocks, size, expires_s)
            blocks = 0
        return self.keep(self.store.reserve(ONE, blocks, size, expires_s), [ModelBlock(size) for _ in range(blocks)], expires_s)

    @rule(target=leases, held=leases, lease_s=st.floats(0.1, 5), data=st.data())
    def share(self, held: ModelLease, lease_s: float, data: st.DataObject) -> ModelLease:
        expires_s = self.now_s + lease_s
        if not held.alive:
            with pytest.raises(LeaseEnded):
                self.store.share(held.lease, OTHER, expires_s)
            return held
        first = data.draw(st.integers(0, len(held.blocks)))
        return self.keep(self.store.share(held.lease, OTHER, expires_s, first), held.blocks[first:], expires_s)

    @rule(held=leases, index=st.integers(0, 6), payload=st.binary(max_size=4))
    def put(self, held: ModelLease, index: int, payload: bytes) -> None:
        if held.alive and index < len(held.blocks) and held.blocks[index].payload is None:
            self.store.put(held.lease, index, payload)
            held.blocks[index].payload = payload
        else:
            with pytest.raises((LeaseEnded, ValueError)):
                self.store.put(held.lease, index, payload)

    @rule(held=leases)
    def seal(self, held: ModelLease) -> None:
        if held.alive and all(block.payload is not None for block in held.blocks):
            self.store.seal(held.lease)
            for block in held.blocks:
                block.sealed = True
        else:
            with pytest.raises((LeaseEnded, ValueError)):
                self.store.seal(held.lease)

    @rule(held=leases)
    def read(self, held: ModelLease) -> None:
        if held.alive and all(block.sealed for block in held.blocks):
            assert self.store.read(held.lease) == tuple(block.payload for block in held.blocks)
        else:
            with pytest.raises((LeaseEnded, ValueError)):
                self.store.read(held.lease)

    @rule(held=leases, lease_s=st.floats(0.1, 5))
    def renew(self, held: ModelLease, lease_s: float) -> None:
        if held.alive:
            held.expires_s = self.now_s + lease_s
            self.store.renew(held.lease, held.expires_s)

    @rule(held=consumes(leases))
    def release(self, held: ModelLease) -> None:
        self.store.release(held.lease)
        held.alive = False

    @rule(held=leases)
    def release_and_use_later(self, held: ModelLease) -> None:
        self.store.release(held.lease)
        held.alive = False

    @rule(passed_s=st.floats(0, 3))
    def expire(self, passed_s: float) -> None:
        self.now_s += passed_s
        over = [held for held in self.model if held.alive and held.expires_s <= self.now_s]
        assert self.store.expire(self.now_s) == tuple(held.lease for held in over)
        for held in over:
            held.alive = False

    @invariant()
    def every_byte_is_counted_once(self) -> None:
        assert self.store.used_bytes == self.store.leased_bytes == self.expected_bytes <= 100
        assert self.store.leases == sum(held.alive for held in self.model)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
