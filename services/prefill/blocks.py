"""The blocks of one job: those that were cached, those that it makes, and their place in prefill's cache.

Owned by a job, which feeds from here what its targets are sent. What a job makes enters the cache when it stops making more, and
sooner where another job waits for it. Never awaits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdd.engine.base import KvSource, Payload
from pdd.identity import RequestId
from pdd.kv.cache import Prefix, PrefixCache
from pdd.kv.hashing import common_blocks
from pdd.kv.layout import KvLayout
from pdd.kv.store import Lease


class PromptBlocks:
    """Holds nothing until `pin`. After `release` it holds nothing any more."""

    def __init__(self, cache: PrefixCache, owner: RequestId, prefix: Prefix, prompt_tokens: int, layout: KvLayout) -> None:
        self.prefix = prefix
        self.usable = (prompt_tokens - 1) // layout.block_tokens  # of a cache: the last token must be computed
        self.cached = 0  # leading blocks that are pinned
        self.made = 0  # of those after them
        self._cache = cache
        self._owner = owner
        self._block_bytes = layout.block_bytes
        self._pinned: Lease | None = None
        self._reserved: Lease | None = None

    def common(self, other: PromptBlocks) -> int:
        """How many leading blocks the other job has made or will make that this one could use; 0 where nothing is cached."""
        if self._cache.limit_bytes == 0:
            return 0
        return min(self.usable, common_blocks(self.prefix.hashes, other.prefix.hashes))

    def has(self, blocks: int) -> bool:
        return self.cached + self.made >= blocks

    def pin(self, expires_s: float) -> Sequence[Payload]:
        """Hold what is cached by now; returns those blocks that were not held before."""
        before, cached = self.cached, min(self.usable, self._cache.match(self.prefix))
        if cached <= before:
            return ()
        pinned = self._cache.pin(self._owner, self.prefix, cached, expires_s)
        self._release(self._pinned)
        self._pinned, self.cached = pinned, cached
        return self._cache.store.read(pinned)[before:]

    def source(self) -> KvSource | None:
        """What the engine need not compute."""
        return None if self._pinned is None else KvSource(self._cache.store.read(self._pinned))

    def reserve(self, expires_s: float) -> None:
        """Take memory for all that is to be made. Raises NoMemory."""
        missing = len(self.prefix.hashes) - self.cached
        self._reserved = self._cache.reserve(self._owner, missing, self._block_bytes, expires_s)

    def add(self, first_block: int, payloads: Sequence[Payload]) -> None:
        """Blocks that were made, in order."""
        assert self._reserved is not None
        for index, payload in enumerate(payloads, first_block - self.cached):
            self._cache.store.put(self._reserved, index, payload)
        self.made += len(payloads)

    def keep(self) -> None:
        """Cache what was made so far."""
        if self._reserved is not None:
            self._cache.store.seal(self._reserved, self.made)
            self._cache.keep(self._reserved, self.prefix, self.cached)

    def renew(self, expires_s: float) -> None:
        for lease in (self._pinned, self._reserved):
            if lease is not None:
                self._cache.store.renew(lease, expires_s)

    def release(self) -> None:
        self._release(self._pinned)
        self._release(self._reserved)
        self._pinned = self._reserved = None

    def _release(self, lease: Lease | None) -> None:
        if lease is not None:
            self._cache.store.release(lease)
