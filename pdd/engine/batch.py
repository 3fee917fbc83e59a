"""The batch engine: the asyncio shell around the scheduler and a model.

Made by `build`. Owns the task that plans, computes and completes one step after another, and the bounded queue of batches between
it and the one reader of `steps`. It decides nothing: what a step holds and means is `schedule`'s, where it runs is `compute`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self

from pdd.engine.base import Engine, EngineFault, EngineLoad, KvSource, SeqId, StepBatch
from pdd.engine.compute import Compute, compute_step
from pdd.engine.model import Model
from pdd.engine.schedule import Scheduler, StepLimits
from pdd.engine.step import StepResult
from pdd.sampling import SamplingParams
from pdd.telemetry import get_logger

_BATCHES_AHEAD = 4  # finished batches the reader has not taken; at the bound the engine waits for it

_log = get_logger(__name__)


class BatchEngine(Engine):
    def __init__(self, model: Model, limits: StepLimits, compute: Compute) -> None:
        self.capabilities, self.layout = model.capabilities, model.layout
        self._model = model
        self._scheduler = Scheduler(model.capabilities, model.layout.block_tokens, limits)
        self._compute = compute
        self._wake = asyncio.Event()
        self._batches: asyncio.Queue[StepBatch | None] = asyncio.Queue()  # None is the end; bounded by `_room`
        self._room = asyncio.Semaphore(_BATCHES_AHEAD)
        self._broken: Exception | None = None

    def prefill(self, seq: SeqId, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None = None) -> None:
        self._scheduler.prefill(seq, prompt, sampling, kv, self._now_s())
        self._wake.set()

    def open(
        self, seq: SeqId, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None, retain: bool = False
    ) -> None:
        self._scheduler.open(seq, prompt, sampling, kv, self._now_s(), retain)
        self._wake.set()

    def extend(self, seq: SeqId, first_index: int, ids: Sequence[int], then_decode: bool, score: bool = False) -> None:
        self._scheduler.extend(seq, first_index, ids, then_decode, score)
        self._wake.set()

    def throttle(self, seq: SeqId, min_interval_s: float) -> None:
        self._scheduler.throttle(seq, min_interval_s)
        self._wake.set()

    def stop(self, seq: SeqId) -> None:
        self._scheduler.stop(seq)
        self._wake.set()

    def abort(self, seq: SeqId) -> None:
        self._scheduler.abort(seq)
        self._wake.set()

    def load(self) -> EngineLoad:
        return self._scheduler.load()

    async def steps(self) -> AsyncIterator[StepBatch]:
        while (batch := await self._batches.get()) is not None:
            self._room.release()
            yield batch
        self._batches.put_nowait(None)  # for a reader that comes later
        if self._broken is not None:
            raise EngineFault("the engine's loop broke and it serves no more; restart the instance") from self._broken

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._compute)
            stack.push_async_callback(self._compute.call, self._model.close)
            await self._compute.call(self._model.load)
            task = asyncio.get_running_loop().create_task(self._run(), name="engine")
            stack.push_async_callback(self._halt, task)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._running.aclose()

    async def _run(self) -> None:
        try:
            while True:
                await self._advance()
        except Exception as error:
            _log.exception("the engine's loop broke")
            self._broken = error
            self._batches.put_nowait(None)

    async def _advance(self) -> None:
        """One step, or the wait for something to do."""
        self._wake.clear()
        step = self._scheduler.plan(self._now_s())
        if step is None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._scheduler.next_due_s()):
                    await self._wake.wait()
            return
        result = await self._compute.step(partial(compute_step, self._model, step)) if step.works else StepResult()
        batch = self._scheduler.complete(result, self._now_s())
        await self._room.acquire()
        self._batches.put_nowait(batch)

    async def _halt(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        # Not the task's own last act: one that is cancelled before its first turn has none.
        self._batches.put_nowait(None)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
