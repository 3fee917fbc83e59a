"""One process of a local mesh: started on a leash, logging to a file, stopped within a bound.

Called by `cluster`. Owns the process and nothing else; what the process is for is in its `ProcessSpec`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pdd.cli.plan import ProcessSpec, inherited_environment
from pdd.process import LeashedProcess, start_module

_TAIL_BYTES = 64 << 10


class Child(LeashedProcess):
    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, log_path: Path, log_begin: int) -> None:
        """`log_begin` is the length that the log had before."""
        super().__init__(process)
        self.spec = spec
        self.log_path = log_path
        self._log_begin = log_begin

    @classmethod
    async def start(cls, spec: ProcessSpec, log_dir: Path, own_environment: Mapping[str, str]) -> Self:
        """Start it with its output appended to `log_dir`/name.log."""
        log_path = log_dir / f"{spec.name}.log"
        environment = {**inherited_environment(own_environment), **spec.environment}
        with log_path.open("ab") as log:
            log_begin = log.tell()
            process = await start_module(spec.module, environment=environment, stdout=log, stderr=log)
        return cls(spec, process, log_path, log_begin)

    @property
    def name(self) -> str:
        return self.spec.name

    def tail(self, lines: int = 15) -> str:
        """The last lines that it has written, and no other process before it in the same log."""
        with self.log_path.open("rb") as log:
            log.seek(max(self._log_begin, self.log_path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])
