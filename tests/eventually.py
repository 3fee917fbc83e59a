"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

POLL_S = 0.01


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return once `condition()` is true. Raises TimeoutError after `timeout_s`.

    For conditions of the world outside the event loop (a process, a file) and others that set no event.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
