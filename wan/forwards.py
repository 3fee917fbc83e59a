"""Forwarded ports: each forwards what connects to it, over the line, to a target in the other site.

Called by `relay`. Owns the listeners and the tasks of their connections; the tasks run in a group of the relay's.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from dataclasses import dataclass

from pdd.telemetry import get_logger
from wan import sockets
from wan.connection import Connection, ConnectionCount
from wan.line import Link
from wan.link import Outage

MAX_CONNECTIONS = 256  # of one forward; more are reset
KEPT_COUNTS = 64  # of ended connections

_ACCEPT_PAUSE_S = 0.05

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForwardCount:
    """Bytes that have crossed the line; `connections` holds the running ones and the last that ended."""

    name: str
    target: str
    address: str
    connections: tuple[ConnectionCount, ...]
    a_to_b_bytes: int
    b_to_a_bytes: int


class Forward:
    def __init__(
        self, name: str, target: str, host: str, link: Link, group: asyncio.TaskGroup, *, port: int = 0, from_b: bool = False
    ) -> None:
        """`from_b`: it listens in site B for a target in site A."""
        self.name = name
        self.target = target  # of connections accepted from now on
        self._host = host
        self._port = port
        self._from_b = from_b
        self._link = link
        self._group = group
        self._ids = itertools.count(1)
        self._listening: tuple[socket.socket, asyncio.Task[None]] | None = None
        self._running: dict[Connection, asyncio.Task[None]] = {}
        self._ended: deque[ConnectionCount] = deque(maxlen=KEPT_COUNTS)
        self._ended_bytes = (0, 0)

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def listen(self) -> None:
        """Accept connections, on the same port as before where there was one. Raises OSError."""
        if self._listening is None:
            listener = await sockets.listen(self._host, self._port)
            self._port = listener.getsockname()[1]
            self._listening = listener, self._group.create_task(self._accept(listener))

    async def refuse(self) -> None:
        """Close the port; running connections go on."""
        if self._listening is not None:
            (listener, task), self._listening = self._listening, None
            try:
                await _cancelled([task])
            finally:
                listener.close()

    async def reset(self) -> None:
        """Reset the running connections."""
        await _cancelled(list(self._running.values()))

    async def close(self) -> None:
        await self.refuse()
        await self.reset()

    def count(self) -> ForwardCount:
        running = [connection.count() for connection in self._running]
        return ForwardCount(
            name=self.name,
            target=self.target,
            address=self.address,
            connections=(*self._ended, *running),
            a_to_b_bytes=self._ended_bytes[0] + sum(count.a_to_b_bytes for count in running),
            b_to_a_bytes=self._ended_bytes[1] + sum(count.b_to_a_bytes for count in running),
        )

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                near, peer = await loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, or the peer was gone already
                log.warning("can't accept", forward=self.name, error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._take(near, "{}:{}".format(*peer[:2]))

    def _take(self, near: socket.socket, peer: str) -> None:
        if self._link.settings.outage is Outage.RESET or len(self._running) >= MAX_CONNECTIONS:
            sockets.abort(near)
            return
        connection = Connection(next(self._ids), near, peer, self.target, self._link, from_b=self._from_b)
        task = self._group.create_task(connection.run())
        self._running[connection] = task
        task.add_done_callback(lambda _: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        del self._running[connection]
        connection.close()
        count = connection.count()
        self._ended.append(count)
        self._ended_bytes = (self._ended_bytes[0] + count.a_to_b_bytes, self._ended_bytes[1] + count.b_to_a_bytes)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
