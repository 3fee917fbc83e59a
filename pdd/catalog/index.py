"""What every instance caches, as a gateway knows it: kept up from snapshots and batches, asked once for each request.

Fed by `follower`, read by the router's shell. Owns the hashes of the instances that are followed; pure. An instance is followed
under one incarnation; nothing of another is taken, and an instance that is not followed holds nothing.

An entry is *in doubt* where it can't be told to be right: never loaded, a batch missing, or a digest that does not fit. It is
asked on as it stands, since a hint that is a little wrong is worth more than none, and takes no batches until it is loaded anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pdd.catalog.prefixes import UNPUBLISHED, CacheBatch, CacheEvent, CacheSnapshot, CacheState, digest, leading
from pdd.identity import Instance


@dataclass(slots=True)
class _Entry:
    state: CacheState = UNPUBLISHED
    hashes: set[int] = field(default_factory=set)
    doubt: str | None = "not loaded yet"

    def take(self, batch: CacheBatch) -> None:
        self.hashes.update(batch.added)
        self.hashes.difference_update(batch.removed)
        held = self.state.digest ^ digest(batch.added) ^ digest(batch.removed)
        self.state = CacheState(batch.state.seq, len(self.hashes), held)


class PrefixIndex:
    def __init__(self) -> None:
        self._entries: dict[Instance, _Entry] = {}

    def follow(self, instances: Collection[Instance]) -> None:
        """These and no others; newcomers are in doubt."""
        self._entries = {instance: self._entries.get(instance) or _Entry() for instance in instances}

    def load(self, instance: Instance, snapshot: CacheSnapshot) -> bool:
        """Take a snapshot in place of what is held. False where it does not fit its own digest: then it stays in doubt."""
        entry = self._entries.get(instance)
        if entry is None:
            return True
        fits = (len(snapshot.hashes), digest(snapshot.hashes)) == (snapshot.state.count, snapshot.state.digest)
        entry.state, entry.hashes = snapshot.state, set(snapshot.hashes)
        entry.doubt = None if fits else f"its snapshot does not fit {snapshot.state}"
        return fits

    def apply(self, event: CacheEvent) -> None:
        """Take the next event of the stream. One that a snapshot has overtaken changes nothing."""
        entry = self._entries.get(event.instance)
        if entry is None or entry.doubt is not None:
            return
        match event.change:
            case CacheState(seq=seq):
                if seq > entry.state.seq:
                    entry.doubt = "it has published everything anew"
            case CacheBatch(state=CacheState(seq=seq)) if seq > entry.state.seq + 1:
                entry.doubt = f"batches between {entry.state.seq} and {seq} are missing"
            case CacheBatch(state=CacheState(seq=seq)) as batch if seq == entry.state.seq + 1:
                entry.take(batch)
                self.compare(event.instance, batch.state)

    def compare(self, instance: Instance, told: CacheState) -> None:
        """With what the instance says of itself, once the stream has been read to the end as of then."""
        entry = self._entries.get(instance)
        if entry is None or entry.doubt is not None or told.seq < entry.state.seq:
            return
        if told != entry.state:
            entry.doubt = f"it says {told}, and the index has {entry.state}"

    def doubt_all(self, reason: str) -> None:
        for entry in self._entries.values():
            entry.doubt = reason

    @property
    def doubts(self) -> Mapping[Instance, str]:
        """Who has to be loaded anew, and why."""
        return {instance: entry.doubt for instance, entry in self._entries.items() if entry.doubt is not None}

    @property
    def states(self) -> Mapping[Instance, CacheState]:
        """Of everyone who is followed."""
        return {instance: entry.state for instance, entry in self._entries.items()}

    def longest(self, hashes: Sequence[int], instance: Instance) -> int:
        """How many leading blocks of a prompt the instance holds."""
        entry = self._entries.get(instance)
        return 0 if entry is None else leading(hashes, entry.hashes)
