"""A Python module as a process of its own, for tests: nothing of it outlives the test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from pdd.leash import leashed

DEADLINE_S = 30.0


class ModuleProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and whatever it has started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):  # it may have ended before the loop has heard of it
                os.killpg(self.process.pid, number)

    async def until(self, text: str) -> str:
        """The first line on stderr from here on that contains `text`. Raises AssertionError where the process ends before it."""
        assert self.process.stderr is not None
        said = ""
        async with asyncio.timeout(DEADLINE_S):
            while line := (await self.process.stderr.readline()).decode():
                if text in line:
                    return line
                said += line
        raise AssertionError(f"ended before it said {text!r}:\n{said}")

    async def end(self) -> tuple[int, str]:
        """Wait for its end: the exit code and the rest of stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            said = (await self.process.stderr.read()).decode()
            return await self.process.wait(), said


@asynccontextmanager
async def running_module(module: str, environment: Mapping[str, str]) -> AsyncIterator[ModuleProcess]:
    """`python -m module` with `environment` added to this process's own, killed with its whole group at the end."""
    process = await asyncio.create_subprocess_exec(
        *leashed(sys.executable, "-m", module),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    running = ModuleProcess(process)
    try:
        yield running
    finally:
        running.signal(signal.SIGKILL)
        await process.wait()
