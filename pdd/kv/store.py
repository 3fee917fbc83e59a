"""Host memory for KV blocks: a byte budget, reservations, references, leases.

Used by prefill, which pins a prompt's blocks for its targets until each has committed or cancelled, and by the receiver, which
reserves a transfer's whole range and fills it block by block. Owns which blocks exist, who holds them and what they cost. Never
awaits, reads a clock or looks into a payload.

Blocks are held by leases and by the prefix cache. Each lease is one reference on each of its blocks, and the cache is one holder
more; a block goes with its last holder. What only the cache holds can be had for the asking: `kv.cache` lets go of it.

    reserve ─► put… ─► seal ─► read          what is not sealed can't be read
       └─ share ─► read                      another reference on the same blocks
    any ─► release | expire                  afterwards the lease is good for nothing, and says so
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pdd.engine.base import Payload
from pdd.identity import RequestId


class NoMemory(Exception):
    """A range does not fit beside what is held, or not at all, as the text says; nothing of it was reserved."""


class LeaseEnded(Exception):
    """The lease was released or has expired: its blocks may be somebody else's."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold on a run of blocks, made by a store and meaningless to any other."""

    number: int
    owner: RequestId
    blocks: int


@dataclass(slots=True, eq=False)
class Block:
    """For the store and the cache alone; everyone else knows blocks by their lease."""

    charged_bytes: int
    leases: int = 0
    cached: bool = False
    payload: Payload | None = None
    sealed: bool = False


@dataclass(slots=True)
class _Held:
    lease: Lease
    blocks: tuple[Block, ...]
    expires_s: float


@dataclass(slots=True)
class BlockStore:
    budget_bytes: int
    used_bytes: int = field(default=0, init=False)  # by leases and by the cache
    leased_bytes: int = field(default=0, init=False)  # by leases; the rest of what is used can be evicted
    filled_bytes: int = field(default=0, init=False)  # of the leased ones, those that have their payload
    sealed_bytes: int = field(default=0, init=False)  # of these, those that can be read
    _held: dict[int, _Held] = field(default_factory=dict, init=False)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)

    def __post_init__(self) -> None:
        if self.budget_bytes < 1:
            raise ValueError(f"budget_bytes must be at least 1, got {self.budget_bytes}")

    @property
    def usage(self) -> float:
        """Share of the budget that leases hold, 0..1. What is only cached makes way for them."""
        return self.leased_bytes / self.budget_bytes

    @property
    def leases(self) -> int:
        return len(self._held)

    def reserve(self, owner: RequestId, blocks: int, block_bytes: int, expires_s: float) -> Lease:
        """Take memory for `blocks` new blocks of `block_bytes` each, all of it or none. Raises NoMemory."""
        if blocks < 0 or block_bytes < 1:
            raise ValueError(f"a range of {blocks} blocks of {block_bytes} bytes can't be reserved")
        needed = blocks * block_bytes
        if needed > self.budget_bytes:
            raise NoMemory(
                f"{blocks} blocks need {needed} bytes, more than the whole budget of {self.budget_bytes}: "
                "raise PDD_KV_BUDGET_MB, or send a shorter prompt"
            )
        if needed > self.budget_bytes - self.used_bytes:
            free = self.budget_bytes - self.leased_bytes
            raise NoMemory(
                f"{blocks} blocks need {needed} bytes and {free} of {self.budget_bytes} are free: retry when others have ended, "
                "or raise PDD_KV_BUDGET_MB"
            )
        self.used_bytes += needed
        return self.hold(owner, tuple(Block(block_bytes) for _ in range(blocks)), expires_s)

    def share(self, lease: Lease, owner: RequestId, expires_s: float, first_block: int = 0) -> Lease:
        """Hold the lease's blocks from `first_block` on once more, at no cost. Raises LeaseEnded."""
        blocks = self._find(lease).blocks
        if not 0 <= first_block <= len(blocks):
            raise ValueError(f"first_block must lie in 0..{len(blocks)}, got {first_block}")
        return self.hold(owner, blocks[first_block:], expires_s)

    def put(self, lease: Lease, index: int, payload: Payload) -> None:
        """Fill one reserved block, once. The payload is kept, not copied. Raises LeaseEnded."""
        blocks = self._find(lease).blocks
        if not 0 <= index < len(blocks) or blocks[index].payload is not None:
            raise ValueError(f"block {index} of {len(blocks)} is filled already or out of range")
        blocks[index].payload = payload
        self.filled_bytes += blocks[index].charged_bytes

    def seal(self, lease: Lease, blocks: int | None = None) -> None:
        """Make the lease's first `blocks`, or all, readable; each of them must be filled. Raises LeaseEnded."""
        sealed = self._find(lease).blocks[:blocks]
        empty = [index for index, block in enumerate(sealed) if block.payload is None]
        if empty:
            raise ValueError(f"{len(empty)} of {len(sealed)} blocks are empty, the first is {empty[0]}: nothing is sealed")
        for block in sealed:
            if not block.sealed:
                block.sealed = True
                self.sealed_bytes += block.charged_bytes

    def read(self, lease: Lease) -> tuple[Payload, ...]:
        """The payloads, in order. Raises LeaseEnded, and ValueError where a block is not sealed."""
        blocks = self._find(lease).blocks
        payloads = tuple(block.payload for block in blocks if block.sealed and block.payload is not None)
        if len(payloads) != len(blocks):
            raise ValueError(f"{len(blocks) - len(payloads)} of {len(blocks)} blocks are not sealed and can't be read")
        return payloads

    def renew(self, lease: Lease, expires_s: float) -> None:
        """Raises LeaseEnded."""
        self._find(lease).expires_s = expires_s

    def release(self, lease: Lease) -> None:
        """Give the lease's references back. A lease that has ended stays ended."""
        held = self._held.get(lease.number)
        if held is None or held.lease is not lease:
            return
        del self._held[lease.number]
        for block in held.blocks:
            block.leases -= 1
            if block.leases == 0:
                self._count(block, -block.charged_bytes)
                if not block.cached:
                    self.used_bytes -= block.charged_bytes

    def expire(self, now_s: float) -> tuple[Lease, ...]:
        """End every lease that has run out at `now_s`, and say which, oldest first."""
        over = tuple(held.lease for held in self._held.values() if held.expires_s <= now_s)
        for lease in over:
            self.release(lease)
        return over

    # ── for the prefix cache ──

    def hold(self, owner: RequestId, blocks: Sequence[Block], expires_s: float) -> Lease:
        """One reference more on each of these blocks, at no cost."""
        for block in blocks:
            if block.leases == 0:
                self._count(block, block.charged_bytes)
            block.leases += 1
        lease = Lease(next(self._numbers), owner, len(blocks))
        self._held[lease.number] = _Held(lease, tuple(blocks), expires_s)
        return lease

    def sealed(self, lease: Lease) -> tuple[Block, ...]:
        """The lease's leading blocks that can be read. Raises LeaseEnded."""
        return tuple(itertools.takewhile(lambda block: block.sealed, self._find(lease).blocks))

    def uncache(self, block: Block) -> None:
        """The cache has let go of it."""
        block.cached = False
        if block.leases == 0:
            self.used_bytes -= block.charged_bytes

    # ── shared ──

    def _count(self, block: Block, size: int) -> None:
        """A block becomes leased, or is no more: then `size` is negative."""
        self.leased_bytes += size
        if block.payload is not None:
            self.filled_bytes += size
        if block.sealed:
            self.sealed_bytes += size

    def _find(self, lease: Lease) -> _Held:
        held = self._held.get(lease.number)
        if held is None or held.lease is not lease:
            raise LeaseEnded(f"the lease on {lease.blocks} blocks of {lease.owner} was released or has expired")
        return held
