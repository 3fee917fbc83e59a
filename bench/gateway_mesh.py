"""The gateway under test: a real `python -m gateway`, a registry, and instances that cost nothing, each on the core it is given.

Used by `bench/gateway.py`. Owns the processes; reads the gateway's CPU time and the instances' counters from outside.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.gateway_instances import shared_counters
from bench.gateway_sessions import COUNTERS
from pdd.catalog.embedded import embedded_valkey
from pdd.cli.plan import GATEWAY_ENVIRONMENT, PROCESS_ENVIRONMENT
from pdd.cli.ports import claim
from pdd.leash import leashed

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class MeshPlan:
    model_dir: Path
    pipeline: str  # "relay" or "direct"
    pace_ms: float  # 0: as fast as the gateway takes frames
    eager: int  # tokens from the relay before main has its KV
    gateway_core: int
    other_core: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals since the processes started."""

    cpu_s: float  # of the gateway: user and system, all its threads
    requests: int
    tokens: int
    frames: int  # of the decoders

    def since(self, earlier: Reading) -> Reading:
        return Reading(
            self.cpu_s - earlier.cpu_s,
            self.requests - earlier.requests,
            self.tokens - earlier.tokens,
            self.frames - earlier.frames,
        )


class BenchMesh:
    def __init__(self, http: str, gateway_pid: int, counters: memoryview) -> None:
        self.http = http
        self.gateway_pid = gateway_pid
        self._counters = counters

    def read(self) -> Reading:
        requests, tokens, frames = COUNTERS.unpack(self._counters[: COUNTERS.size])
        return Reading(_cpu_s(self.gateway_pid), requests, tokens, frames)


@asynccontextmanager
async def running_mesh(plan: MeshPlan, log_dir: Path) -> AsyncIterator[BenchMesh]:
    """Entered, the gateway answers /ready. Its log is `log_dir`/gateway.log."""
    counters = log_dir / "counters"
    counters.write_bytes(bytes(COUNTERS.size))
    http = claim("127.0.0.1:0")
    async with embedded_valkey() as redis_url:
        with shared_counters(counters) as view, memoryview(view) as memory:
            instances = ["bench.gateway_instances", "--redis", redis_url, "--model-dir", str(plan.model_dir)]
            instances += ["--counters", str(counters), "--pace-ms", str(plan.pace_ms), "--eager", str(plan.eager)]
            instances += ["--relayed"] if plan.pipeline == "relay" else []
            environment = {
                **GATEWAY_ENVIRONMENT,
                "PDD_ENGINE": "llama",
                "PDD_MODEL_DIR": str(plan.model_dir),
                "PDD_REDIS_URL": redis_url,
                "PDD_HTTP": http,
                "PDD_LISTEN": "127.0.0.1:0",
                "PDD_PIPELINE": plan.pipeline,
            }
            async with (
                _process(instances, {}, plan.other_core, log_dir / "instances.log"),
                _process(["gateway"], environment, plan.gateway_core, log_dir / "gateway.log") as pid,
            ):
                await _until_ready(http, log_dir)
                yield BenchMesh(http, pid, memory)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside runs on that core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@asynccontextmanager
async def _process(arguments: list[str], environment: dict[str, str], core: int, log: Path) -> AsyncIterator[int]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PDD_")}
    with log.open("wb") as output, on_core(core):
        process = await asyncio.create_subprocess_exec(
            *leashed(sys.executable, "-m", *arguments),
            env={**inherited, **PROCESS_ENVIRONMENT, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_ready(http: str, log_dir: Path) -> None:
    answer = "nothing"
    try:
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"http://{http}/ready") as response:
                        if response.status == 200:
                            return
                        answer = await response.text()
                except aiohttp.ClientError as error:
                    answer = str(error)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise RuntimeError(f"the gateway did not get ready: {answer}\n{last_words(log_dir)}") from None


def last_words(log_dir: Path) -> str:
    """The ends of the processes' logs."""
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in sorted(log_dir.glob("*.log")))


def _cpu_s(pid: int) -> float:
    """Exact to the nanosecond, ended threads included; /proc/PID/stat has the same in steps of 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of another process: linux/include/linux/posix-timers.h
