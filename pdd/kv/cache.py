"""The prefix cache: which blocks of prompts seen before an instance still holds, least recently used first to go.

Used by prefill for what it made, by the receiver for what came, and by main for what it generated. One holder more of the blocks
of a store, and the one that makes room in it: whoever reserves through the cache gets what only the cache holds. Owns names,
order and membership. Never awaits, reads a clock or looks into a payload.

Prefix-closed: a block is cached only with every block before it, so the leading blocks of a prompt are found by walking until one
is missing. A touch moves a prefix's blocks to the recent end from its last to its first; so no block is older than those that
follow it, and what goes first is always a leaf. A leased block is never evicted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.engine.base import Payload
from pdd.identity import RequestId
from pdd.kv.hashing import chain_packed, pack_ids
from pdd.kv.store import Block, BlockStore, Lease, NoMemory


@dataclass(frozen=True, slots=True)
class Prefix:
    """The full blocks of some ids, by name and content."""

    hashes: tuple[int, ...] = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)  # at least those of the blocks; compared on a hit, since xxh3 is no proof
    packed: bytes = field(default=b"", repr=False, compare=False)  # the ids as `pack_ids` has them

    def __post_init__(self) -> None:
        if not self.packed:
            object.__setattr__(self, "packed", pack_ids(self.ids))


def prefix_of(ids: tuple[int, ...], block_tokens: int, salt: str) -> Prefix:
    """Raises ValueError for an id outside 0..2³²−1."""
    packed = pack_ids(ids)
    return Prefix(chain_packed(packed, block_tokens, salt), ids, packed)


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """Hashes that came and went; none is in both."""

    added: tuple[int, ...]
    removed: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    block: Block
    ids: bytes
    parent: _Entry | None
    children: int = 0  # that are cached


class PrefixCache:
    """`limit_bytes` is how much it may hold, leased or not; 0 keeps nothing."""

    def __init__(self, store: BlockStore, block_tokens: int, limit_bytes: int) -> None:
        self.store = store
        self.limit_bytes = limit_bytes
        self._stride = len(pack_ids((0,))) * block_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # by hash, oldest first
        self._used_bytes = 0
        self._walked: tuple[Prefix, list[_Entry]] | None = None  # the last walk: a pin follows a match
        self.evicted_blocks = 0  # so far
        self._added: dict[int, None] = {}  # since the last take_changes
        self._removed: dict[int, None] = {}

    @property
    def blocks(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def hashes(self) -> frozenset[int]:
        return frozenset(self._entries)

    def take_changes(self) -> CacheChanges:
        """What came and went since the last call."""
        changes = CacheChanges(tuple(self._added), tuple(self._removed))
        self._added, self._removed = {}, {}
        return changes

    # ── use ──

    def match(self, prefix: Prefix) -> int:
        """How many leading blocks are cached. Touches nothing."""
        return len(self._walk(prefix))

    def pin(self, owner: RequestId, prefix: Prefix, blocks: int, expires_s: float) -> Lease:
        """Hold the first `blocks` and touch them. Raises ValueError where they are not cached."""
        found = self._walk(prefix)[:blocks]
        if len(found) != blocks:
            raise ValueError(f"{blocks} blocks can't be pinned, {len(found)} are cached: match first")
        self._touch(prefix, blocks)
        return self.store.hold(owner, [entry.block for entry in found], expires_s)

    def reserve(self, owner: RequestId, blocks: int, block_bytes: int, expires_s: float) -> Lease:
        """As the store's `reserve`, evicting as needed. Raises NoMemory; nothing is evicted for what leases leave no room for."""
        needed, store = blocks * block_bytes, self.store
        if needed <= store.budget_bytes - store.leased_bytes:
            self._evict(needed - (store.budget_bytes - store.used_bytes))
        return store.reserve(owner, blocks, block_bytes, expires_s)

    def keep(self, lease: Lease, prefix: Prefix, first_block: int) -> int:
        """The lease's leading sealed blocks become blocks `first_block`… of the prefix; returns how many are new to the cache.

        Keeps nothing where a block before them is not cached, and none that is cached already. Keeps the leading ones where the
        limit does not allow all. Touches the prefix. Raises LeaseEnded.
        """
        blocks = self.store.sealed(lease) if self.limit_bytes else ()
        end = first_block + len(blocks)
        if end > len(prefix.hashes) or end * self._stride > len(prefix.packed):
            raise ValueError(f"blocks {first_block}..{end - 1} are not all among the {len(prefix.hashes)} of the prefix")
        chain = self._walk(prefix)[:end]
        if not blocks or len(chain) < first_block:
            return 0
        kept = self._append(prefix, chain, blocks[len(chain) - first_block :])
        self._touch(prefix, len(chain) + kept)
        return kept

    def keep_payloads(
        self, owner: RequestId, prefix: Prefix, first_block: int, payloads: Sequence[Payload], block_bytes: int
    ) -> int:
        """As `keep`, of payloads that no lease holds yet. Returns how many were kept, 0 where there is no room."""
        cached = self.match(prefix)
        new = payloads[max(0, cached - first_block) :]
        if cached < first_block or not new or not self.limit_bytes:
            return 0
        pinned = self.pin(owner, prefix, cached, math.inf)  # or making room could take what they follow
        try:
            reserved = self.reserve(owner, len(new), block_bytes, math.inf)
        except NoMemory:
            return 0
        finally:
            self.store.release(pinned)
        for index, payload in enumerate(new):
            self.store.put(reserved, index, payload)
        self.store.seal(reserved)
        kept = self.keep(reserved, prefix, max(first_block, cached))
        self.store.release(reserved)
        return kept

    def clear(self) -> None:
        """Let go of everything; what is leased stays with its leases."""
        for name in tuple(self._entries):
            self._remove(name)

    # ── shared ──

    def _walk(self, prefix: Prefix) -> list[_Entry]:
        if self._walked is not None and self._walked[0] is prefix:
            return self._walked[1]
        entries, packed, stride = self._entries, prefix.packed, self._stride
        found: list[_Entry] = []
        parent, start = None, 0
        for name in prefix.hashes:
            entry = entries.get(name)
            if entry is None or entry.parent is not parent or entry.ids != packed[start : start + stride]:
                break
            found.append(entry)
            parent = entry
            start += stride
        self._walked = prefix, found
        return found

    def _touch(self, prefix: Prefix, blocks: int) -> None:
        move = self._entries.move_to_end
        for name in reversed(prefix.hashes[:blocks]):
            move(name)

    def _append(self, prefix: Prefix, chain: Sequence[_Entry], blocks: Sequence[Block]) -> int:
        """Cache blocks that follow the chain; returns how many."""
        tip = chain[-1] if chain else None
        free = self.limit_bytes - self._used_bytes
        self._evict(sum(block.charged_bytes for block in blocks) - free, spared=tip)
        for kept, block in enumerate(blocks):
            index = len(chain) + kept
            name, full = prefix.hashes[index], self._used_bytes + block.charged_bytes > self.limit_bytes
            if full or block.cached or name in self._entries:  # the last: two contents of one hash
                return kept
            entry = _Entry(block, prefix.packed[index * self._stride : (index + 1) * self._stride], tip)
            if tip is not None:
                tip.children += 1
            tip = self._entries[name] = entry
            block.cached = True
            self._used_bytes += block.charged_bytes
            self._note(name, self._added, self._removed)
        return len(blocks)

    def _evict(self, wanted_bytes: int, spared: _Entry | None = None) -> None:
        """Let go of that many bytes of what nobody leases, oldest first, or of all there is."""
        victims = []
        for name, entry in self._entries.items():
            if wanted_bytes <= 0:
                break
            if entry.children or entry.block.leases or entry is spared:
                continue
            victims.append(name)
            wanted_bytes -= entry.block.charged_bytes
            if entry.parent is not None:
                entry.parent.children -= 1
        for name in victims:
            self._remove(name)
        self.evicted_blocks += len(victims)

    def _remove(self, name: int) -> None:
        block = self._entries.pop(name).block
        self._used_bytes -= block.charged_bytes
        self.store.uncache(block)
        self._note(name, self._removed, self._added)

    def _note(self, name: int, now: dict[int, None], before: dict[int, None]) -> None:
        self._walked = None
        if name in before:
            del before[name]
        else:
            now[name] = None
