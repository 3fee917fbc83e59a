"""Compiles and runs `gateway_load.c`, the clients of `bench/gateway.py`."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.gateway_mesh import on_core

SOURCE = Path(__file__).with_name("gateway_load.c")


@dataclass(frozen=True, slots=True)
class LoadReport:
    requests: int
    events: int
    bytes: int
    elapsed_s: float
    ttft_us: tuple[int, ...]  # one a request


def compile_load(folder: Path) -> Path:
    """Raises RuntimeError where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("a C compiler is needed for the clients: install gcc or clang")
    program = folder / "gateway_load"
    subprocess.run([compiler, "-O2", "-o", program, SOURCE], check=True)
    return program


def request_bytes(http: str, body: dict[str, object], path: str = "/v1/chat/completions") -> bytes:
    data = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Load:
    """Clients that are running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, program: Path, http: str, request: Path, *, streams: int, stagger_us: int, seconds: float, core: int
    ) -> Load:
        host, port = http.split(":")
        arguments = (host, port, str(streams), str(stagger_us), str(seconds), str(request))
        with on_core(core):
            process = await asyncio.create_subprocess_exec(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return cls(process)

    async def end(self) -> LoadReport:
        """What they saw, when their time is over. Raises RuntimeError where an answer failed."""
        output, error = await self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError(f"the clients ended with code {self._process.returncode}: {error.decode(errors='replace')}")
        found = json.loads(output)
        return LoadReport(found["requests"], found["events"], found["bytes"], found["elapsed_s"], tuple(found["ttft_us"]))
