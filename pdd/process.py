"""A Python module as a process on the leash of this one: started, signalled, stopped within a bound.

Used by the command line for the processes of a mesh, by the gateway for its workers. Owns the process; leaving it to run is the
caller's business, and its death with this process is `leash`'s.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pdd
from pdd.leash import leashed

STOP_GRACE_S = 5.0  # time to end in good order before it is killed
# The code that runs here is the code that the children run, wherever they are started and whatever lies in that folder.
_SOURCE_ROOT = str(Path(pdd.__file__).parents[1])


class LeashedProcess:
    """A running process, or one that has ended; `returncode` is None while it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code; minus the signal's number where one ended it."""
        return await self._process.wait()

    async def first_line(self) -> bytes:
        """What it writes to stdout first, where that is a pipe; empty where it ends before. Called once."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to whatever it has started; does nothing once it has ended."""
        if self.returncode is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return  # it has ended and `wait` is about to say so

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to end, and kill it if it has not within `grace_s`; returns once it is gone."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait()
        finally:
            self.signal(signal.SIGKILL)  # only where the wait was cancelled


async def start_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
) -> asyncio.subprocess.Process:
    """`python -m module arguments…` with this environment and no other; None leaves an output where this process's goes."""
    return await asyncio.create_subprocess_exec(
        *leashed(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**environment, "PYTHONPATH": _SOURCE_ROOT},
        # A terminal's Ctrl-C is for the parent, which stops the children in order.
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
