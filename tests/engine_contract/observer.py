"""The one reader of an engine's batches in tests: keeps what each sequence did and lets a test wait for it.

Checks on every batch what holds for any engine at any time: steps count up, indices come in order and once, blocks in order and
once, and nothing names a sequence after its closing event.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pdd.engine.base import (
    Aborted,
    Engine,
    EngineEvent,
    Extended,
    Failed,
    Finished,
    KvBlocks,
    KvSource,
    Payload,
    Prefilled,
    Retained,
    SeqId,
    StepBatch,
    Stopped,
    TokenOut,
)
from pdd.sampling import SamplingParams

Closing = Prefilled | Stopped | Finished | Aborted | Failed

_PATIENCE_S = 900  # for a busy machine with the real model: each test has a time limit of its own


@dataclass(slots=True)
class Seen:
    """What one sequence did so far."""

    tokens: list[TokenOut] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    extended: list[Extended] = field(default_factory=list)
    retained: Retained | None = None
    closing: Closing | None = None

    @property
    def ids(self) -> list[int]:
        return [out.token for out in self.tokens]


class Record:
    """What all sequences did, batch by batch."""

    def __init__(self) -> None:
        self.seen: defaultdict[SeqId, Seen] = defaultdict(Seen)
        self.given: dict[SeqId, int] = {}  # blocks that a prefill was given
        self.steps = 0

    def take(self, batch: StepBatch) -> None:
        assert batch.step > self.steps
        self.steps = batch.step
        for event in batch.events:
            if isinstance(event, KvBlocks | Extended):
                self._take_opening(event)
            elif isinstance(event, Retained):
                self._take_retained(event, batch)
        for out in batch.tokens:
            seen = self.seen[out.seq]
            assert seen.closing is None, f"{out} after {seen.closing}"
            if seen.tokens:
                assert out.index == seen.tokens[-1].index + 1
            seen.tokens.append(out)
        for event in batch.events:
            if isinstance(event, Closing):
                assert self.seen[event.seq].closing is None, f"{event} after {self.seen[event.seq].closing}"
                self.seen[event.seq].closing = event

    def _take_opening(self, event: EngineEvent) -> None:
        seen = self.seen[event.seq]
        assert seen.closing is None, f"{event} after {seen.closing}"
        if isinstance(event, KvBlocks):
            assert event.first_block == self.given.get(event.seq, 0) + len(seen.payloads)
            seen.payloads.extend(event.payloads)
        elif isinstance(event, Extended):
            seen.extended.append(event)

    def _take_retained(self, event: Retained, batch: StepBatch) -> None:
        seen = self.seen[event.seq]
        assert seen.retained is None
        assert event.payloads
        (closing,) = (other for other in batch.events if other.seq == event.seq and other is not event)
        assert isinstance(closing, Stopped | Finished)
        assert batch.events.index(event) < batch.events.index(closing)
        seen.retained = event


class Observer(Record):
    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self._changed = asyncio.Condition()
        self._numbers = itertools.count(1)

    def new(self) -> SeqId:
        return next(self._numbers)

    async def read(self) -> None:
        async for batch in self.engine.steps():
            self.take(batch)
            async with self._changed:
                self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S), self._changed:
            await self._changed.wait_for(condition)

    async def closing(self, seq: SeqId) -> Closing:
        await self.until(lambda: self.seen[seq].closing is not None)
        closing = self.seen[seq].closing
        assert closing is not None
        return closing

    async def extended(self, seq: SeqId, count: int = 1) -> Extended:
        """Wait for the sequence's `count`-th Extended."""
        await self.until(lambda: len(self.seen[seq].extended) >= count or self.seen[seq].closing is not None)
        return self.seen[seq].extended[count - 1]

    def prefill(self, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None = None) -> SeqId:
        seq = self.new()
        self.given[seq] = len(kv.payloads) if kv is not None else 0
        self.engine.prefill(seq, prompt, sampling, kv)
        return seq

    async def prefilled(
        self, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None = None
    ) -> tuple[KvSource, int]:
        """Prefill `prompt` behind the blocks of `kv` and give its whole KV and output index 0."""
        seq = self.prefill(prompt, sampling, kv)
        closing = await self.closing(seq)
        assert isinstance(closing, Prefilled), closing
        assert [out.index for out in self.seen[seq].tokens] == [0]
        given = kv.payloads if kv is not None else ()
        return KvSource((*given, *self.seen[seq].payloads)), self.seen[seq].tokens[0].token

    def decode(
        self, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None, ids: Sequence[int], retain: bool = False
    ) -> SeqId:
        """Open a sequence and let it decode from the known ids on."""
        seq = self.new()
        self.engine.open(seq, prompt, sampling, kv, retain)
        self.engine.extend(seq, 0, ids, then_decode=True)
        return seq

    async def plain(self, prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
        """The whole output as one engine makes it alone, without any KV brought in."""
        _, first = await self.prefilled(prompt, sampling)
        seq = self.decode(prompt, sampling, None, [first])
        await self.closing(seq)
        return [first, *self.seen[seq].ids]


@asynccontextmanager
async def observe(engine: Engine) -> AsyncIterator[Observer]:
    """Read the engine's batches as long as the context lasts; what the reader finds wrong is raised here."""
    observer = Observer(engine)
    async with asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(observer.read())
        yield observer
        reader.cancel()
