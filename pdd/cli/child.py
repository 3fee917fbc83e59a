"""One process of a local mesh: started on a leash, logging to a file, stopped within a bound.

Called by `cluster`. Owns the process and nothing else; what the process is for is in its `ProcessSpec`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pdd
from pdd.cli.plan import ProcessSpec, inherited_environment
from pdd.leash import leashed

STOP_GRACE_S = 5.0  # time to end in good order before it is killed
_TAIL_BYTES = 64 << 10
# The code that runs here is the code that the children run, wherever they are started and whatever lies in that folder.
_SOURCE_ROOT = str(Path(pdd.__file__).parents[1])


class Child:
    """A running process, or one that has ended; `returncode` is None while it runs."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self._process = process

    @classmethod
    async def start(cls, spec: ProcessSpec, log_dir: Path, own_environment: Mapping[str, str]) -> Self:
        """Start it with its output appended to `log_dir`/name.log."""
        log_path = log_dir / f"{spec.name}.log"
        environment = {**inherited_environment(own_environment), "PYTHONPATH": _SOURCE_ROOT, **spec.environment}
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *leashed(sys.executable, "-P", "-m", spec.module),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                # A terminal's Ctrl-C is for the parent, which stops the children in order.
                start_new_session=True,
            )
        return cls(spec, process, log_path)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code; minus the signal's number where one ended it."""
        return await self._process.wait()

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

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
