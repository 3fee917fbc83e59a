"""A whole mesh as local processes: started, watched, stopped.

Called by `pdd up`, `pdd demo` and the tests that need real processes. Owns the processes and the embedded Valkey; leaving the
context ends all of them, and so does the death of the process that entered it (see `pdd.leash`). What runs is for `plan` to say.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from pdd.catalog.embedded import embedded_valkey
from pdd.cli.child import Child
from pdd.cli.plan import Addresses, MeshOptions, ProcessSpec, plan_mesh
from pdd.cli.ports import claim
from pdd.process import describe_exit

_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_WAN_START_S = 15.0
_STILL_WAITING_S = 5.0


class MeshStartError(Exception):
    """The mesh did not come up; the text says which process failed and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A process that ended by itself while the mesh was up."""

    name: str
    code: int
    tail: str

    def __str__(self) -> str:
        return f"{self.name} {describe_exit(self.code)}"


class LocalMesh:
    """An async context manager: entered, the gateway is ready and connected to all of it.

    Raises MeshStartError and ListenError on entry. `exits` fills with processes that end by themselves; each is put there once.
    """

    addresses: Addresses
    log_dir: Path

    def __init__(self, options: MeshOptions, report: Callable[[str], None] = lambda _line: None) -> None:
        self.options = options
        self.children: dict[str, Child] = {}
        self.exits: asyncio.Queue[ChildExit] = asyncio.Queue()
        self._report = report
        self._stack = AsyncExitStack()

    @property
    def http_url(self) -> str:
        return self.addresses.http_url

    @property
    def grpc_address(self) -> str:
        return self.addresses.grpc

    @property
    def wan_control_url(self) -> str:
        return self.addresses.wan_control_url

    @property
    def redis_url(self) -> str:
        return self.addresses.redis_url

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        options = self.options
        http, grpc, wan_control = claim(options.http), claim(options.grpc), claim(options.wan_control)
        self.log_dir = options.log_dir or Path(tempfile.mkdtemp(prefix="pdd-"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._report(f"logs: {self.log_dir}")
        redis_url = options.redis_url
        if redis_url is None:
            redis_url = await stack.enter_async_context(embedded_valkey())
        self.addresses = Addresses(http, grpc, wan_control, redis_url)
        self._report(f"registry: {redis_url}" + ("" if options.redis_url else " (embedded Valkey)"))
        plan = plan_mesh(options, self.addresses)
        session = await stack.enter_async_context(_probe_session())
        await stack.enter_async_context(self._running((plan.wan,)))
        await self._until(session, f"{self.wan_control_url}/health", "the WAN relay", _WAN_START_S)
        await stack.enter_async_context(self._running(plan.instances))
        await stack.enter_async_context(self._running((plan.gateway,)))
        await self._until(session, f"{self.http_url}/ready", "the gateway to be ready", options.ready_timeout_s)
        # It is ready without a relay where each request has its own pipeline; a mesh that was asked for is whole.
        wanted = [f'pdd_instance_connected{{instance_id="{spec.name}"}} 1.0' for spec in plan.instances]
        if options.gateway_workers > 1:
            wanted.append(f"pdd_gateway_workers {options.gateway_workers}.0")
        await self._until(session, f"{self.http_url}/metrics", "all instances", options.ready_timeout_s, wanted)

    @asynccontextmanager
    async def _running(self, specs: tuple[ProcessSpec, ...]) -> AsyncIterator[None]:
        """The processes of `specs`, watched; leaving stops them all at once."""
        children: list[Child] = []
        watchers: list[asyncio.Task[None]] = []
        try:
            for spec in specs:
                child = await Child.start(spec, self.log_dir, os.environ)
                children.append(child)
                watchers.append(asyncio.create_task(self._watch(child), name=f"watch {child.name}"))
                self.children[child.name] = child
                self._report(f"{child.name}: started (pid {child.pid})")
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()
            async with asyncio.TaskGroup() as group:
                for child in children:
                    group.create_task(child.stop())

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        self.exits.put_nowait(ChildExit(child.name, code, child.tail()))

    async def _until(
        self, session: aiohttp.ClientSession, url: str, what: str, timeout_s: float, lines: Sequence[str] = ()
    ) -> None:
        """Poll `url` until it answers 200 with all `lines`. Raises MeshStartError when a process ends first, or too late."""
        loop = asyncio.get_running_loop()
        start_s = told_s = loop.time()
        while (answer := await _probe(session, url, lines)) is not None:
            if not self.exits.empty():
                ended = self.exits.get_nowait()
                raise MeshStartError(f"{ended} during start-up. The end of its log:\n{ended.tail}")
            now_s = loop.time()
            if now_s - start_s > timeout_s:
                raise MeshStartError(f"waited {timeout_s:g} s for {what}: {answer}. Logs: {self.log_dir}")
            if now_s - told_s > _STILL_WAITING_S:
                told_s = now_s
                self._report(f"waiting for {what}: {answer}")
            await asyncio.sleep(_POLL_S)


def _probe_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S))


async def _probe(session: aiohttp.ClientSession, url: str, lines: Sequence[str]) -> str | None:
    """None where `url` answers 200 with all `lines`, else what it answered or lacks, in a line."""
    try:
        async with session.get(url) as response:
            text = await response.text()
            if response.status != 200:
                return f"{response.status} {text.strip()[:200]}"
            missing = set(lines) - set(text.splitlines())
            return f"not there yet: {', '.join(sorted(missing))}" if missing else None
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"no answer yet ({type(error).__name__})"
