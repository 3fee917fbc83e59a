"""One connection through the relay: two sockets and, for each direction, a pipe over the line.

Called by `forwards` for each connection it accepts. Owns both sockets; a connection that does not end in order ends in a reset on
both sides. The end of data and a reset travel the line like data, behind what was sent before them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from pdd.telemetry import get_logger
from wan import sockets
from wan.line import Item, Line, Link, Mark

DIAL_TIMEOUT_S = 5.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionCount:
    """Bytes that have crossed the line."""

    id: int
    peer: str
    open: bool
    a_to_b_bytes: int
    b_to_a_bytes: int


class Pipe:
    """One direction of a connection: reads `source`, sends over `line`, writes to `sink`.

    It stops reading while its window is full, so that a slow sink holds up its own source and nobody else's.
    """

    def __init__(self, line: Line, source: socket.socket, sink: socket.socket) -> None:
        self.crossed_bytes = 0
        self._line = line
        self._source = source
        self._sink = sink
        self._arrived: asyncio.Queue[Item] = asyncio.Queue()  # bounded by the window
        self._outstanding_bytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._ended = asyncio.Event()

    def arrive(self, item: Item) -> None:
        if isinstance(item, bytes):
            self.crossed_bytes += len(item)
        self._arrived.put_nowait(item)

    async def pump(self) -> None:
        """Source to line, until the source ends or breaks."""
        loop = asyncio.get_running_loop()
        while True:
            await self._open.wait()
            try:
                data = await loop.sock_recv(self._source, self._line.settings.chunk_bytes)
            except OSError:
                return await self.send(Mark.RESET)
            if not data:
                return await self.send(Mark.END)
            self._count(len(data))
            await self.send(data)

    async def send(self, item: Item) -> None:
        await self._line.send(self, item)

    async def deliver(self) -> None:
        """Line to sink, until cancelled: even behind the end of data a reset may come. Raises _Reset, or the sink's OSError."""
        loop = asyncio.get_running_loop()
        while True:
            item = await self._arrived.get()
            if item is Mark.RESET:
                raise _Reset
            if item is Mark.END:
                self._sink.shutdown(socket.SHUT_WR)
                self._ended.set()
            else:
                assert isinstance(item, bytes)
                await loop.sock_sendall(self._sink, item)
                self._count(-len(item))

    async def await_reset(self) -> None:
        """Drop what arrives. Raises _Reset when a reset is among it."""
        while await self._arrived.get() is not Mark.RESET:
            continue
        raise _Reset

    async def ended(self) -> None:
        """Wait until the end of data has been passed on."""
        await self._ended.wait()

    def _count(self, difference: int) -> None:
        self._outstanding_bytes += difference
        if self._outstanding_bytes < self._line.settings.window_bytes:
            self._open.set()
        else:
            self._open.clear()


class _Reset(Exception):
    """The other side's socket broke, and word of it has crossed the line."""


class Connection:
    def __init__(self, id: int, near: socket.socket, peer: str, target: str, link: Link, *, from_b: bool = False) -> None:
        """`from_b`: it is opened from site B, so that what `near` sends crosses from B to A."""
        self._id = id
        self._peer = peer
        self._near = near
        self._target = target
        self._link = link
        self._from_b = from_b
        self._pipes: tuple[Pipe, Pipe] | None = None
        self._ended = False

    def count(self) -> ConnectionCount:
        there, back = (pipe.crossed_bytes for pipe in self._pipes) if self._pipes else (0, 0)
        a_to_b, b_to_a = (back, there) if self._from_b else (there, back)
        return ConnectionCount(self._id, self._peer, not self._ended, a_to_b, b_to_a)

    def close(self) -> None:
        """Let go of the socket where `run` was cancelled before it began; does nothing after it."""
        self._near.close()

    async def run(self) -> None:
        """Carry the connection to its end. Cancel to reset it."""
        far: socket.socket | None = None
        close: Callable[[socket.socket], None] = sockets.abort
        loop = asyncio.get_running_loop()
        try:
            await self._link.passing()
            ready_s = loop.time() + self._link.settings.rtt_ms / 1000  # a handshake takes a round trip
            far = await self._dial()
            await asyncio.sleep(max(0.0, ready_s - loop.time()))
            if far is not None:
                await self._carry(far)
                close = socket.socket.close
        except* _Reset:
            pass  # `close` is still a reset, which is how the news is passed on
        finally:
            self._ended = True
            close(self._near)
            if far is not None:
                close(far)

    async def _dial(self) -> socket.socket | None:
        """The far side's socket; None where the target can't be reached."""
        try:
            return await sockets.dial(self._target, DIAL_TIMEOUT_S)
        except OSError as error:
            log.warning("can't reach the target", target=self._target, peer=self._peer, error=str(error))
            return None

    async def _carry(self, far: socket.socket) -> None:
        lines = (self._link.a_to_b, self._link.b_to_a)
        line_there, line_back = reversed(lines) if self._from_b else lines
        there, back = Pipe(line_there, self._near, far), Pipe(line_back, far, self._near)
        self._pipes = there, back
        async with asyncio.TaskGroup() as group:
            deliveries = [group.create_task(_deliver(there, back)), group.create_task(_deliver(back, there))]
            for pipe in self._pipes:
                group.create_task(pipe.pump())
            await there.ended()
            await back.ended()
            for task in deliveries:
                task.cancel()


async def _deliver(pipe: Pipe, opposite: Pipe) -> None:
    try:
        await pipe.deliver()
    except OSError:
        # The sink broke. Whoever reads from it may have seen an orderly end before, so the source is told from here.
        await opposite.send(Mark.RESET)
        await pipe.await_reset()
