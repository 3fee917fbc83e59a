"""Tasks and generators of a virtual run, kept in orders that do not depend on addresses, and how to name them in reports.

Used by `clock` alone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextvars import Context
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTask(asyncio.Task[T]):
    """A task whose hash is its number in the run instead of its address."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        number: int,
        name: object,
        context: Context | None,
    ) -> None:
        self.number = number  # first: the stock constructor puts the task into a set
        super().__init__(coro, loop=loop, name=str(name or f"Task-{number}"), context=context)

    def __hash__(self) -> int:
        return self.number


def label(handle: asyncio.Handle) -> str:
    """Who runs: the same in every run, hence without addresses."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    callback = getattr(callback, "func", callback)  # a partial's
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def place(task: asyncio.Task[Any]) -> str:
    """The innermost line of what a task waits in, and the coroutines on the way there."""
    names: list[str] = []
    line = "done" if task.done() else "not started"
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is None:
            break
        names.append(awaited.__qualname__)
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{' > '.join(names)} at {line}"


class OrderedWeakSet(weakref.WeakKeyDictionary[AsyncGenerator[Any, Any], None]):
    """As much of a WeakSet as the base event loop uses, in the order of adding."""

    def add(self, item: AsyncGenerator[Any, Any]) -> None:
        self[item] = None

    def discard(self, item: AsyncGenerator[Any, Any]) -> None:
        self.pop(item, None)
