"""A task group, `wait` and `as_completed` that keep the order in which they were given their tasks.

For code that must behave alike in every run, on any event loop. The stock ones keep tasks in sets, whose order is that of
addresses: a group cancels its tasks, and `wait` gives them back, in another order whenever the heap is another. On a
`VirtualLoop` sets of tasks iterate alike in every run, so there the stock ones are reproducible too, in no order that means
anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class TaskGroup(asyncio.TaskGroup):
    """Cancels its tasks in the order in which they were created."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks = _OrderedSet()  # type: ignore[assignment]  # the base's set: it adds, discards and iterates


async def wait(
    futures: Sequence[asyncio.Future[T]], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[list[asyncio.Future[T]], list[asyncio.Future[T]]]:
    """As asyncio.wait: those that are done and those that are not, both in the order of `futures`."""
    done, _ = await asyncio.wait(futures, timeout=timeout, return_when=return_when)
    return [one for one in futures if one in done], [one for one in futures if one not in done]


async def as_completed(futures: Sequence[asyncio.Future[T]]) -> AsyncIterator[asyncio.Future[T]]:
    """Each future once it is done; those that are done at the same time in the order of `futures`."""
    completed: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
    for one in futures:
        one.add_done_callback(completed.put_nowait)
    try:
        for _ in futures:
            yield await completed.get()
    finally:
        for one in futures:
            one.remove_done_callback(completed.put_nowait)


class _OrderedSet(dict[asyncio.Task[Any], None]):
    """As much of a set as the stock task group uses."""

    def add(self, task: asyncio.Task[Any]) -> None:
        self[task] = None

    def discard(self, task: asyncio.Task[Any]) -> None:
        self.pop(task, None)
