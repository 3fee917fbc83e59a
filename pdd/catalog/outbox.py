"""What the catalog has been told of one cache, and what it is to be told next.

Used by `publisher`. Pure. Owns the changes that are not told yet, which are bounded: where more pile up than is worth sending one
by one, everything is to be published anew. A batch stays the same until its answer is there, so that it can be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pdd.catalog.prefixes import UNPUBLISHED, CacheBatch, CacheSnapshot, CacheState, digest


class Outbox:
    def __init__(self, batch_hashes: int, max_pending: int) -> None:
        """At most `batch_hashes` in a batch; with more than `max_pending` changes untold, everything is published anew."""
        self.told = UNPUBLISHED
        self.anew: str | None = "nothing is published yet"  # why everything is to be published
        self._batch_hashes = batch_hashes
        self._max_pending = max_pending
        self._pending: dict[int, bool] = {}  # True: added; in the order of the changes
        self._sending: CacheBatch | None = None
        self._seq = 0  # of what was last given out

    def add(self, added: Iterable[int], removed: Iterable[int]) -> None:
        """What has changed since the last call; no hash is in both."""
        if self.anew is not None:
            return
        for changes, is_added in ((removed, False), (added, True)):
            for hash in changes:
                if self._pending.pop(hash, None) is None:  # or it is as it was told
                    self._pending[hash] = is_added
        if len(self._pending) > self._max_pending:
            self.publish_anew(f"{len(self._pending)} changes have piled up")

    def next_batch(self) -> CacheBatch | None:
        """The batch that is to be sent now, the same until `sent` or `publish_anew`."""
        if self._sending is None and self._pending:
            part = list(islice(self._pending.items(), self._batch_hashes))
            for hash, _ in part:
                del self._pending[hash]
            added = tuple(hash for hash, is_added in part if is_added)
            removed = tuple(hash for hash, is_added in part if not is_added)
            state = CacheState(
                self.told.seq + 1,
                self.told.count + len(added) - len(removed),
                self.told.digest ^ digest(added) ^ digest(removed),
            )
            self._sending, self._seq = CacheBatch(state, added, removed), state.seq
        return self._sending

    def publish_anew(self, reason: str) -> None:
        """The catalog does not hold what it was told."""
        self.anew = reason
        self._pending.clear()
        self._sending = None

    def snapshot(self, hashes: frozenset[int]) -> CacheSnapshot:
        """Everything, as it is now; the changes from now on go on top of it."""
        self._seq += 1  # above all that was given out: what became of it is not known
        return CacheSnapshot(CacheState(self._seq, len(hashes), digest(hashes)), hashes)

    def sent(self, state: CacheState) -> None:
        """The catalog has taken the batch or the snapshot with this state."""
        self.told = state
        self.anew = self._sending = None
