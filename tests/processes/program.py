"""The `pdd` program as a process of its own, as a person starts it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

PDD = (sys.executable, "-m", "pdd.cli")
DEADLINE_S = 60.0
ANY_PORTS = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--wan-control", "127.0.0.1:0")


class Running:
    """`pdd up`, being read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""

    async def until(self, text: str) -> str:
        """Read on until a line contains `text`; the line. Raises AssertionError where the program ends first."""
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            while line := (await self.process.stdout.readline()).decode():
                self.output += line
                if text in line:
                    return line
        raise AssertionError(f"ended before it said {text!r}:\n{self.output}")

    async def end(self) -> int:
        """Read to the end; the exit code."""
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            self.output += (await self.process.stdout.read()).decode()
            return await self.process.wait()

    def pid_of(self, name: str) -> int:
        found = re.search(rf"^{name}: started \(pid (\d+)\)$", self.output, re.MULTILINE)
        assert found, self.output
        return int(found[1])

    @property
    def grpc_address(self) -> str:
        found = re.search(r"^gRPC API: +(\S+)$", self.output, re.MULTILINE)
        assert found, self.output
        return found[1]


@asynccontextmanager
async def started(*arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Running]:
    """`pdd arguments…`, killed at the end where it still runs."""
    process = await asyncio.create_subprocess_exec(
        *PDD,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def ended(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run `pdd arguments…` to its end: exit code and all that it printed."""
    async with started(*arguments, environment=environment) as running:
        code = await running.end()
        return code, running.output


def children_of(pid: int) -> list[int]:
    """Ids of the running processes that `pid` has started."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _parent(path) == pid]


def all_gone(pids: list[int]) -> Callable[[], bool]:
    """A condition: none of `pids` runs any more."""
    return lambda: not any(_state(Path(f"/proc/{pid}")) not in ("", "Z") for pid in pids)


def _parent(process: Path) -> int:
    fields = _fields(process)
    return int(fields[1]) if fields else 0


def _state(process: Path) -> str:
    fields = _fields(process)
    return fields[0] if fields else ""


def _fields(process: Path) -> list[str]:
    """Those of /proc/PID/stat from the state on; none where the process is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
