"""Computing one step: the model's calls in order, and where they run.

Called by `batch`. `compute_step` owns nothing and runs wherever a `Compute` puts it: `ThreadCompute` on a thread of its own, for
models that take their time; `InlineCompute` on the event loop, for models that only say how long they would have taken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from pdd.engine.base import EngineFault, Payload, SeqId
from pdd.engine.model import Logits, Model, StepCost
from pdd.engine.step import Step, StepResult, Work
from pdd.sampling import Sampled, sample
from pdd.telemetry import get_logger

_log = get_logger(__name__)


def compute_step(model: Model, step: Step) -> StepResult:
    """Run the step on the model. Never raises: a sequence that went wrong gets a fault, and the others their results.

    Only a forward pass that fails takes all sequences of the step with it, since it is one call for all of them.
    """
    faults: dict[SeqId, EngineFault] = {}
    _prepare(model, step.works, faults)
    works = [work for work in step.works if work.seq not in faults]
    try:
        logits, cost = _forward(model, works)
    except Exception as error:
        faults.update(dict.fromkeys((work.seq for work in works), _fault(error, works)))
        return StepResult(faults=faults)
    # Draws come before exports: logits last until the model's next call.
    sampled, scored = _draw(works, logits, faults)
    blocks = _export(model, [work for work in works if work.blocks is not None and work.seq not in faults], faults)
    return StepResult(sampled, scored, blocks, faults, cost)


def _prepare(model: Model, works: Sequence[Work], faults: dict[SeqId, EngineFault]) -> None:
    for work in works:
        try:
            if work.clear:
                model.clear(work.slot)
            if work.kv is not None and work.kv.payloads:
                model.import_kv(work.slot, work.kv.payloads)
        except Exception as error:
            faults[work.seq] = _fault(error, [work])


def _forward(model: Model, works: Sequence[Work]) -> tuple[Sequence[Logits], StepCost]:
    rows = [row for work in works for row in work.rows]
    if not rows:
        return [], StepCost()
    logits, cost = model.forward(rows)
    wanted = sum(len(work.scores) + (work.draw is not None) for work in works)
    if len(logits) != wanted:
        raise EngineFault(f"the model gave {len(logits)} rows of logits where {wanted} were wanted; it is at fault")
    return logits, cost


def _draw(
    works: Sequence[Work], logits: Sequence[Logits], faults: dict[SeqId, EngineFault]
) -> tuple[dict[SeqId, Sampled], dict[SeqId, tuple[int, ...]]]:
    """The next tokens, and those of `Work.scores`."""
    sampled: dict[SeqId, Sampled] = {}
    scored: dict[SeqId, tuple[int, ...]] = {}
    at = 0  # the next row of logits
    for work in works:
        rows, draw = logits[at : at + len(work.scores)], work.draw
        at += len(rows)
        try:
            if rows:
                drawn = (
                    sample(row, known.params, known.index, known.history) for row, known in zip(rows, work.scores, strict=True)
                )
                scored[work.seq] = tuple(found.token for found in drawn)
            if draw is not None:
                sampled[work.seq] = sample(logits[at], draw.params, draw.index, draw.history)
        except Exception as error:
            faults[work.seq] = _fault(error, [work])
        at += draw is not None
    return sampled, scored


def _export(model: Model, works: Sequence[Work], faults: dict[SeqId, EngineFault]) -> dict[SeqId, tuple[Payload, ...]]:
    exported: dict[SeqId, tuple[Payload, ...]] = {}
    for work in works:
        assert work.blocks is not None
        try:
            export = model.export_kv if work.rows else model.take_kv
            exported[work.seq] = export(work.slot, *work.blocks)
        except Exception as error:
            faults[work.seq] = _fault(error, [work])
            if not work.rows:
                _log.warning("a sequence has ended and its blocks are lost to the cache", sequence=work.seq, error=str(error))
    return exported


def _fault(error: Exception, works: Sequence[Work]) -> EngineFault:
    """What the sequences of `works` end with, since computing them raised `error`."""
    if isinstance(error, EngineFault):
        return error
    _log.error("the model failed", sequences=[work.seq for work in works], exc_info=error)
    unexpected = EngineFault(f"the model failed: {error!r}; see the engine's log")
    unexpected.__cause__ = error
    return unexpected


class Compute(ABC):
    """Where a model's calls run, one at a time and in order. An async context manager."""

    @abstractmethod
    async def call(self, work: Callable[[], None]) -> None:
        """Run `work` and raise what it raises."""

    @abstractmethod
    async def step(self, work: Callable[[], StepResult]) -> StepResult:
        """Run a step and return once its time, real or simulated, has passed."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ThreadCompute(Compute):
    """One thread of its own. A caller that is cancelled leaves its call running; the next one waits behind it."""

    async def call(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def step(self, work: Callable[[], StepResult]) -> StepResult:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def __aenter__(self) -> Self:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A call that was left running is waited for on the loop, so that the shutdown below has nothing to wait for.
        await self.call(_nothing)
        self._executor.shutdown()


class InlineCompute(Compute):
    """The event loop's own thread, then a sleep as long as the step would have taken."""

    async def call(self, work: Callable[[], None]) -> None:
        work()

    async def step(self, work: Callable[[], StepResult]) -> StepResult:
        result = work()
        await asyncio.sleep(result.cost.simulated_s)
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def _nothing() -> None:
    """A call to wait for."""
