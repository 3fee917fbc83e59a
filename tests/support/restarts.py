"""Processes of a local mesh that are killed and started again while the others go on."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pdd.cli.child import Child
from pdd.cli.cluster import LocalMesh
from tests.support.gateway import GatewayClient


class Restarts:
    """Used by one test at a time: it kills by name, and starts by the plan of the mesh."""

    def __init__(self, mesh: LocalMesh, stack: AsyncExitStack) -> None:
        self._mesh = mesh
        self._stack = stack

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Returns once the process has ended."""
        child = self._mesh.children[name]
        child.signal(number)
        await child.wait()

    async def start(self, name: str) -> None:
        """The same process again, as `pdd up` started it."""
        child = await Child.start(self._mesh.children[name].spec, self._mesh.log_dir, os.environ)
        self._stack.push_async_callback(child.stop)
        self._mesh.children[name] = child

    async def restart(self, gateway: GatewayClient, name: str) -> None:
        """Kill an instance and start it anew; returns once the gateway has its stream again."""
        await self.kill(name)
        await gateway.until("pdd_instance_connected", 0, instance_id=name)
        await self.start(name)
        await gateway.until("pdd_instance_connected", 1, instance_id=name)


@asynccontextmanager
async def restarting(mesh: LocalMesh) -> AsyncIterator[Restarts]:
    """What was started again is stopped on leaving."""
    async with AsyncExitStack() as stack:
        yield Restarts(mesh, stack)
