"""Caches, batches and snapshots for the tests of the prefix catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pdd.catalog.prefixes import UNPUBLISHED, CacheBatch, CacheSnapshot, CacheState, digest


@dataclass(frozen=True, slots=True)
class Taken:
    added: tuple[int, ...]
    removed: tuple[int, ...]


class FakeCache:
    """A prefix cache as its publisher sees it."""

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        self.held: dict[int, None] = {}
        self.looks = 0  # at its changes
        self._added: dict[int, None] = {}
        self._removed: dict[int, None] = {}
        self.add(hashes)

    def add(self, hashes: Iterable[int]) -> None:
        for hash in hashes:
            if hash not in self.held:
                self.held[hash] = None
                _note(hash, self._added, self._removed)

    def remove(self, hashes: Iterable[int]) -> None:
        for hash in hashes:
            if hash in self.held:
                del self.held[hash]
                _note(hash, self._removed, self._added)

    def take_changes(self) -> Taken:
        self.looks += 1
        taken = Taken(tuple(self._added), tuple(self._removed))
        self._added, self._removed = {}, {}
        return taken

    def hashes(self) -> frozenset[int]:
        return frozenset(self.held)


def _note(hash: int, now: dict[int, None], before: dict[int, None]) -> None:
    if hash in before:
        del before[hash]
    else:
        now[hash] = None


def batch(before: CacheState, added: Collection[int] = (), removed: Collection[int] = ()) -> CacheBatch:
    state = CacheState(before.seq + 1, before.count + len(added) - len(removed), before.digest ^ digest(added) ^ digest(removed))
    return CacheBatch(state, tuple(added), tuple(removed))


def snapshot(hashes: Iterable[int] = (), seq: int = UNPUBLISHED.seq + 1) -> CacheSnapshot:
    held = frozenset(hashes)
    return CacheSnapshot(CacheState(seq, len(held), digest(held)), held)
