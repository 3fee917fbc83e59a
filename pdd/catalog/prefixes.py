"""Who caches which prefix: the prefix catalog's interface and its data.

Instances tell it what their prefix caches hold (through `publisher`); the gateway follows it (through `follower`). Implemented by
`redis_prefixes` and `memory_prefixes`, which pass one contract suite. It is a hint for decisions and never the truth about KV:
that is between an offer and its answer.

A block is named by its chained hash, 64 bits. What an instance holds is prefix-closed (with a block, all blocks before it), and
belongs to an instance and its incarnation: nothing of an earlier incarnation ever counts.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pdd.identity import Instance

HASH_BYTES = 8
STATE_BYTES = 24


@dataclass(frozen=True, slots=True)
class CacheState:
    """What an instance has published, in short: enough to tell whether two sides mean the same set."""

    seq: int  # batches and snapshots so far in this incarnation
    count: int  # blocks
    digest: int  # XOR of their hashes, 64 bits

    def __str__(self) -> str:
        return f"seq {self.seq}, {self.count} blocks, digest {self.digest:016x}"


UNPUBLISHED = CacheState(0, 0, 0)


@dataclass(frozen=True, slots=True)
class CacheBatch:
    """Net changes: none added that was there, none removed that was not, none twice."""

    state: CacheState  # after it
    added: tuple[int, ...]
    removed: tuple[int, ...]

    @property
    def before(self) -> CacheState:
        count = self.state.count - len(self.added) + len(self.removed)
        return CacheState(self.state.seq - 1, count, self.state.digest ^ digest(self.added) ^ digest(self.removed))

    @property
    def size_bytes(self) -> int:
        """Of its hashes and state; the server's protocol adds about 200 bytes a call."""
        return STATE_BYTES + HASH_BYTES * (len(self.added) + len(self.removed))


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    state: CacheState
    hashes: frozenset[int]

    @property
    def size_bytes(self) -> int:
        return STATE_BYTES + HASH_BYTES * len(self.hashes)


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One entry of the stream. A state alone: the instance has published everything anew, and its snapshot tells what."""

    instance: Instance
    change: CacheBatch | CacheState


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """A piece of the stream, in order."""

    events: tuple[CacheEvent, ...]
    position: str  # after them; where to read on
    caught_up: bool  # there were no more when it was read


class StreamLost(Exception):
    """Events after a position are gone: trimmed, or the server has begun anew. Rebuild from snapshots."""


class PrefixCatalog(ABC):
    """All methods raise RegistryUnavailable where its server can't be reached within the backend's deadline."""

    @abstractmethod
    async def publish(self, instance: Instance, batch: CacheBatch, ttl_s: float) -> bool:
        """Apply a batch and keep what is held for `ttl_s`. The same batch again changes nothing.

        False where the catalog does not hold what the batch builds on: publish everything.
        """

    @abstractmethod
    async def publish_all(self, instance: Instance, snapshot: CacheSnapshot, ttl_s: float) -> bool:
        """Replace whatever is held, at once for readers. False where the catalog was emptied under way: try again."""

    @abstractmethod
    async def renew(self, instance: Instance, state: CacheState, ttl_s: float) -> bool:
        """Keep what is held for `ttl_s` more. False where that is not `state`: publish everything."""

    @abstractmethod
    async def withdraw(self, instance: Instance) -> None:
        """Forget what this incarnation holds."""

    @abstractmethod
    async def distrust(self, instance: Instance, state: CacheState) -> None:
        """A reader has found that what is held does not fit `state`: have the instance publish everything."""

    @abstractmethod
    async def longest(self, hashes: Sequence[int], instances: Sequence[Instance]) -> Mapping[Instance, int]:
        """How many leading blocks of a prompt each instance holds; 0 for one that is not registered under its incarnation.

        At most two round trips, whatever the number of blocks and instances.
        """

    @abstractmethod
    async def snapshot(self, instance: Instance) -> CacheSnapshot | None:
        """What is held, as of one moment; None where nothing has been published, or it has run out."""

    @abstractmethod
    async def position(self) -> str:
        """The stream's end. Whoever notes it, takes snapshots and then reads from it has missed nothing."""

    @abstractmethod
    async def events(self, after: str, wait_s: float) -> CacheEvents:
        """What came after a position; where there is nothing, waits for it up to `wait_s`. Raises StreamLost."""


def digest(hashes: Iterable[int]) -> int:
    return reduce(operator.xor, hashes, 0)


def leading(hashes: Sequence[int], held: frozenset[int] | set[int]) -> int:
    """How many of the first hashes are held, by bisection: what is held must be prefix-closed."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low
