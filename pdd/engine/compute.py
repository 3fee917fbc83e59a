"""Computing one step: the model's calls in order, and where they run.

Called by `batch`. `compute_step` owns nothing and runs wherever a `Compute` puts it: `ThreadCompute` on a thread of its own, for
models that take their time; `InlineCompute` on the event loop, for models that only say how long they would have taken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Self

from pdd.engine.base import EngineFault, Payload, SeqId
from pdd.engine.model import Logits, Model, StepCost
from pdd.engine.step import Draw, Step, StepResult, Work
from pdd.sampling import Sampled, sample
from pdd.telemetry import get_logger

_log = get_logger(__name__)


def compute_step(model: Model, step: Step) -> StepResult:
    """Run the step on the model. Never raises: a sequence that went wrong gets a fault, and the others their results.

    Only a forward pass that fails takes all sequences of the step with it, since it is one call for all of them.
    """
    faults: dict[SeqId, EngineFault] = {}
    for work in step.works:
        with _blamed_on([work], faults):
            _prepare(model, work)
    works = [work for work in step.works if work.seq not in faults]
    logits: list[Logits] = []
    cost = StepCost()
    with _blamed_on(works, faults):
        logits, cost = _forward(model, works)
    # Draws come before exports: logits last until the model's next call.
    sampled, scored = _draw(works, logits, faults)
    blocks: dict[SeqId, tuple[Payload, ...]] = {}
    for work in works:
        if work.blocks is not None and work.seq not in faults:
            with _blamed_on([work], faults):
                blocks[work.seq] = model.export_kv(work.slot, *work.blocks)
    return StepResult(sampled, scored, blocks, faults, cost)


def _prepare(model: Model, work: Work) -> None:
    if work.clear:
        model.clear(work.slot)
    if work.kv is not None and work.kv.payloads:
        model.import_kv(work.slot, work.kv.payloads)


def _forward(model: Model, works: Sequence[Work]) -> tuple[list[Logits], StepCost]:
    if not works:
        return [], StepCost()
    logits, cost = model.forward([row for work in works for row in work.rows])
    wanted = sum(len(_draws(work)) for work in works)
    if len(logits) != wanted:
        raise EngineFault(f"the model gave {len(logits)} rows of logits where {wanted} were wanted; it is at fault")
    return logits, cost


def _draws(work: Work) -> tuple[Draw, ...]:
    """In the order of their rows."""
    return work.scores if work.draw is None else (*work.scores, work.draw)


def _draw(
    works: Sequence[Work], logits: Sequence[Logits], faults: dict[SeqId, EngineFault]
) -> tuple[dict[SeqId, Sampled], dict[SeqId, tuple[int, ...]]]:
    """The next tokens, and those of `Work.scores`."""
    sampled: dict[SeqId, Sampled] = {}
    scored: dict[SeqId, tuple[int, ...]] = {}
    rows = iter(logits)
    for work in works:
        if work.seq in faults:
            continue
        draws = _draws(work)
        # Taken off before anything can fail, so that the next work finds its own.
        of_work = list(islice(rows, len(draws)))
        with _blamed_on([work], faults):
            drawn = [sample(row, draw.params, draw.index, draw.history) for row, draw in zip(of_work, draws, strict=True)]
            if work.draw is not None:
                sampled[work.seq] = drawn.pop()
            if drawn:
                scored[work.seq] = tuple(found.token for found in drawn)
    return sampled, scored


@contextmanager
def _blamed_on(works: Sequence[Work], faults: dict[SeqId, EngineFault]) -> Iterator[None]:
    """Turn an exception into a fault of the given works' sequences."""
    try:
        yield
    except EngineFault as fault:
        faults.update((work.seq, fault) for work in works)
    except Exception as error:
        _log.exception("the model failed", sequences=[work.seq for work in works])
        unexpected = EngineFault(f"the model failed: {error!r}; see the engine's log")
        unexpected.__cause__ = error
        faults.update((work.seq, unexpected) for work in works)


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
