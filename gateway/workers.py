"""One gateway on several cores: a parent that keeps N workers running, each a whole gateway on the same two ports.

Called by `gateway.__main__` where more than one worker is asked for. The parent owns the ports' numbers, the processes and the
folder of their metrics; it serves nobody. The kernel gives each connection to one of the workers, which share nothing: each has
streams of its own to the instances, and an identity of its own. They die with the parent.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry, Gauge

from gateway.config import GatewaySettings
from gateway.merged import FOLDER_VARIABLE, forget_gauges
from pdd.process import LeashedProcess, describe_exit, start_module
from pdd.rpc.errors import StartupError
from pdd.rpc.server import shared_port
from pdd.telemetry import get_logger

START_TIMEOUT_S = 60.0  # until a worker serves
STOP_GRACE_S = 4.0  # less than what whoever stops the parent gives it
FIRST_PAUSE_S = 0.5  # before a worker is started again; twice as long each time that it does not last
LONGEST_PAUSE_S = 30.0
LASTED_S = 60.0  # for which a worker has to run for the pause to begin anew

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all workers of a gateway are told."""

    http: str  # host:port, the port known
    grpc: str
    metrics: Path  # a folder


async def serve_workers(settings: GatewaySettings, environment: Mapping[str, str], stop: asyncio.Event) -> None:
    """Keep `settings.workers` running until `stop` is set; `environment` is what they take over. Raises StartupError."""
    with (
        tempfile.TemporaryDirectory(prefix="pdd-gateway-") as folder,
        shared_port(settings.http) as http,
        shared_port(settings.listen) as grpc,
    ):
        crew = WorkerCrew(settings.instance_id, Shared(http, grpc, Path(folder)), environment)
        async with asyncio.TaskGroup() as group:
            keeping = [group.create_task(crew.keep(number), name=f"worker {number}") for number in range(settings.workers)]
            await stop.wait()
            for task in keeping:
                task.cancel()


class WorkerCrew:
    def __init__(self, instance_id: str, shared: Shared, environment: Mapping[str, str]) -> None:
        self._instance_id = instance_id
        self._shared = shared
        self._environment = environment
        self._serving: set[int] = set()
        self._begun = asyncio.Event()  # the first worker serves

    async def keep(self, number: int) -> NoReturn:
        """Start worker `number`, and again whenever it ends, until cancelled. Raises StartupError where nobody can serve."""
        if number > 0:
            await self._begun.wait()  # what keeps the first one from starting would keep the others too, and is said once
        name, now_s = worker_name(self._instance_id, number), asyncio.get_running_loop().time
        pause_s = 0.0
        while True:
            started_s = now_s()
            ended = await self._run(number)
            if not ended.served and not self._serving:
                raise StartupError(f"{name} {ended.how} before it served, and no other worker does")
            pause_s = next_pause_s(pause_s, now_s() - started_s)
            log.error("a worker ended", worker=name, reason=ended.how, served=ended.served, again_in_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self, number: int) -> Ended:
        """One life of a worker. However it ends, and where this is cancelled, the process is gone by then."""
        environment = worker_environment(self._environment, self._instance_id, number, self._shared)
        try:
            process = LeashedProcess(
                await start_module("gateway", "--worker", str(number), environment=environment, stdout=asyncio.subprocess.PIPE)
            )
        except OSError as error:  # the machine has no process to give, for now
            return Ended(False, f"could not be started ({error})")
        try:
            served = await _serves(process)
            if served:
                self._serving.add(number)
                self._begun.set()
                log.info("worker serves", worker=worker_name(self._instance_id, number), pid=process.pid)
                await process.wait()
        finally:
            self._serving.discard(number)
            await process.stop(STOP_GRACE_S)
            forget_gauges(number, self._shared.metrics)
        return Ended(served, describe_exit(await process.wait()))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker's process ended by itself, or did not begin."""

    served: bool  # it had said that it serves
    how: str


class Worker:
    """The other side: tells the parent and whoever reads the metrics that this worker serves."""

    def __init__(self, metrics: CollectorRegistry) -> None:
        self._serving = Gauge(
            "pdd_gateway_workers", "Workers of this gateway that serve", registry=metrics, multiprocess_mode="livesum"
        )

    def serves(self) -> None:
        self._serving.set(1)
        sys.stdout.write("serving\n")  # the one line that a gateway ever writes there
        sys.stdout.flush()


async def _serves(process: LeashedProcess) -> bool:
    """Wait for its word; False where the process ends without it, or takes too long."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return bool(await process.first_line())
    except TimeoutError:
        return False


def worker_name(instance_id: str, number: int) -> str:
    return f"{instance_id}-{number}"


def worker_environment(own: Mapping[str, str], instance_id: str, number: int, shared: Shared) -> dict[str, str]:
    """The parent's, but for what is the worker's own."""
    return {
        **own,
        "PDD_INSTANCE_ID": worker_name(instance_id, number),
        "PDD_HTTP": shared.http,
        "PDD_LISTEN": shared.grpc,
        FOLDER_VARIABLE: str(shared.metrics),
    }


def next_pause_s(previous_s: float, lived_s: float) -> float:
    """Before a worker that has lived so long is started again; `previous_s` is the pause before it, 0 for the first one."""
    if lived_s >= LASTED_S:
        return FIRST_PAUSE_S
    return min(max(2 * previous_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
