"""The WAN emulator itself: one line and the ports forwarded over it.

Called by `control`, and by tests directly. Owns everything; leaving the context resets every connection.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

from pdd.rpc.server import split_address
from pdd.telemetry import get_logger
from wan.forwards import Forward, ForwardCount
from wan.line import Link
from wan.link import LinkSettings, Outage
from wan.sockets import split_target

MAX_FORWARDS = 256

log = get_logger(__name__)


class ForwardRefused(Exception):
    """A port can't be leased or opened again; the text says why."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes that have crossed the line since the start, deleted forwards included."""

    forwards: tuple[ForwardCount, ...]
    a_to_b_bytes: int
    b_to_a_bytes: int


class Relay:
    def __init__(self, settings: LinkSettings, host: str, random: Random) -> None:
        """`host` is where forwarded ports listen and what their addresses say; `random` decides jitter and loss."""
        self._settings = settings
        self._host = host
        self._random = random
        self._forwards: dict[str, Forward] = {}
        self._deleted_bytes = (0, 0)
        self._changing = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._link = Link(self._settings, self._random)
        self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with self._changing:
            for forward in self._forwards.values():
                await forward.close()
        self._link.close()
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def settings(self) -> LinkSettings:
        return self._settings

    async def configure(self, settings: LinkSettings) -> None:
        """Change the line under its running connections.

        Raises ForwardRefused, with everything else done, where a port can't be opened again; the next change tries it again.
        """
        async with self._changing:
            log.info("line changes", was=str(self._settings), now=str(settings))
            self._settings = settings
            self._link.configure(settings)
            refused: list[ForwardRefused] = []
            for forward in self._forwards.values():
                try:
                    await self._apply(forward)
                except ForwardRefused as error:
                    refused.append(error)
        if refused:
            raise ForwardRefused("; ".join(str(error) for error in refused))

    async def lease(self, name: str, target: str) -> str:
        """Forward a port to `target` ("host:port") and return its address.

        The same name gets the same port again; with another target, connections from now on go there. Raises ValueError on a
        bad target and ForwardRefused.
        """
        split_target(target)
        async with self._changing:
            forward = self._forwards.get(name)
            if forward is None:
                forward = Forward(name, target, self._host, self._link, self._group)
                await self._open(forward)
            elif forward.target != target:
                log.info("forward points elsewhere", forward=name, address=forward.address, target=target)
                forward.target = target
            return forward.address

    async def open_from_b(self, name: str, target: str, listen: str) -> str:
        """Let site B reach `target` in site A at `listen` (both "host:port"), and return the address listened on.

        Raises ValueError on a bad target and ForwardRefused.
        """
        split_target(target)
        host, port = split_address(listen)
        async with self._changing:
            forward = Forward(name, target, host, self._link, self._group, port=port, from_b=True)
            await self._open(forward)
            return forward.address

    async def release(self, name: str) -> bool:
        """Close a forward and reset its connections; False where there is none of that name."""
        async with self._changing:
            forward = self._forwards.pop(name, None)
            if forward is None:
                return False
            await forward.close()
            count = forward.count()
            self._deleted_bytes = (self._deleted_bytes[0] + count.a_to_b_bytes, self._deleted_bytes[1] + count.b_to_a_bytes)
            return True

    def counters(self) -> Counters:
        forwards = tuple(forward.count() for forward in self._forwards.values())
        return Counters(
            forwards,
            self._deleted_bytes[0] + sum(count.a_to_b_bytes for count in forwards),
            self._deleted_bytes[1] + sum(count.b_to_a_bytes for count in forwards),
        )

    async def _open(self, forward: Forward) -> None:
        if len(self._forwards) >= MAX_FORWARDS:
            raise ForwardRefused(f"forward {forward.name!r}: all {MAX_FORWARDS} are in use; delete one")
        # Opened even while ports are refused: a lease has a port.
        await self._listen(forward)
        self._forwards[forward.name] = forward
        await self._apply(forward)
        log.info("forward opens", forward=forward.name, address=forward.address, target=forward.target)

    async def _apply(self, forward: Forward) -> None:
        if self._settings.outage is Outage.REFUSE:
            await forward.refuse()
        else:
            await self._listen(forward)
        if self._settings.outage is Outage.RESET:
            await forward.reset()

    async def _listen(self, forward: Forward) -> None:
        try:
            await forward.listen()
        except OSError as error:
            raise ForwardRefused(f"forward {forward.name!r}: can't listen on {forward.address}: {error}") from error
