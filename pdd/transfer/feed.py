"""A prompt's blocks on their way from the engine to the senders: one appends, any number read.

Prefill appends payloads as the engine makes them; each sender reads from a place of its own, so a slow target holds nobody back.
Owns the payloads of one request until the last reader has dropped it. Bounded by the prompt: what may be appended was reserved in
the store before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pdd.engine.base import Payload


@dataclass(frozen=True, slots=True)
class FeedEnd:
    """All blocks are there, and output index 0 is sampled."""

    first_token: int
    final: bool  # index 0 was the last token: no decoder opens


@dataclass(slots=True)
class BlockFeed:
    end: FeedEnd | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    _payloads: list[Payload] = field(default_factory=list, init=False)
    _watchers: list[asyncio.Event] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        """Blocks there are by now."""
        return len(self._payloads)

    def append(self, payloads: Iterable[Payload]) -> None:
        self._check_open()
        self._payloads.extend(payloads)
        self._wake()

    def complete(self, first_token: int, final: bool) -> None:
        """No block will follow."""
        self._check_open()
        self.end = FeedEnd(first_token, final)
        self._wake()

    def fail(self, error: Exception) -> None:
        """What is missing will never come; senders cancel their transfers and raise `error`. Ignored once the feed has ended."""
        if self.end is None and self.error is None:
            self.error = error
            self._wake()

    def blocks(self, first_block: int, limit: int) -> Sequence[Payload]:
        """At most `limit` of the blocks that are there by now, from `first_block` on."""
        return self._payloads[first_block : first_block + limit]

    @contextmanager
    def watch(self, changed: asyncio.Event) -> Iterator[None]:
        """Set `changed` whenever the feed grows or ends, and once on entering. The watcher clears it before it looks."""
        self._watchers.append(changed)
        changed.set()
        try:
            yield
        finally:
            self._watchers.remove(changed)

    def _check_open(self) -> None:
        if self.end is not None or self.error is not None:
            raise ValueError("the feed has ended: nothing can be added to it")

    def _wake(self) -> None:
        for changed in self._watchers:
            changed.set()
