"""One direction of one call: messages in order, bounded in bytes.

Made by `stream`. The sender's end waits for room, the receiver's for messages. Bytes count from being sent to being taken, so
that a receiver who does not read holds up its sender and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from virtual.charge import Charge
from virtual.line import Line, LineFlow


class Pipe:
    def __init__(self, line: Line, flow: LineFlow, window_bytes: int | None = None) -> None:
        """`window_bytes` bounds what is sent and not yet taken; None leaves that to the line."""
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._window_bytes = window_bytes
        self._flow = flow
        self._outstanding_bytes = 0
        self._arrived: deque[tuple[bytes, int]] = deque()
        self._reader: asyncio.Future[tuple[bytes, int] | None] | None = None
        self._given_up = False  # by its reader: the next message is lost
        self._sender: asyncio.Future[None] | None = None
        self._late_bytes = 0  # of a message whose sender gave up; it is sent, but counts as waiting for room
        self._closed = False  # the sender's end: nothing more is taken
        self._ended = False  # the receiver's end: nothing more comes
        self._dropping = False

    # ── the sender's end ──

    async def send(self, data: bytes, charge: Charge) -> bool:
        """Wait for room and send; False where the pipe was closed, or another message waits already.

        As in gRPC, a `send` that is cancelled sends its message all the same.
        """
        if self._sender is not None or (self._late_bytes and self._full(beside=self._late_bytes)):
            return False
        self._late_bytes = 0
        try:
            while self._full() and not self._closed:
                self._sender = self._loop.create_future()
                await self._sender
        except asyncio.CancelledError:
            if not self._closed:
                self._late_bytes = charge.link_bytes
                self.push(data, charge)
            raise
        finally:
            self._sender = None
        if self._closed:
            return False
        self.push(data, charge)
        return True

    def push(self, data: bytes, charge: Charge) -> None:
        """Send without waiting: for the one message of a unary request or answer."""
        self._outstanding_bytes += charge.link_bytes
        self._line.send(self._flow, charge, partial(self._arrive, data, charge.link_bytes))

    def close(self) -> None:
        """A `send` that waits returns False, and so does every later one."""
        self._closed = True
        self._wake_sender()

    # ── the receiver's end ──

    @property
    def empty(self) -> bool:
        return not self._arrived

    @property
    def awaited(self) -> bool:
        """Someone waits for a message, or did and gave up; nobody else may."""
        return self._reader is not None or self._given_up

    async def receive(self) -> bytes | None:
        """The next message; None after the last. As in gRPC, a `receive` that is cancelled still takes the next message."""
        if self._arrived or self._ended:
            return self.take()
        reader = self._reader = self._loop.create_future()
        try:
            return self._taken(await reader)
        except asyncio.CancelledError:
            self._given_up = reader.cancelled()
            raise
        finally:
            self._reader = None

    def take(self) -> bytes | None:
        """The next message, if there is one already."""
        return self._taken(self._arrived.popleft()) if self._arrived else None

    def end(self) -> None:
        """Nothing more comes: readers see the end behind what is here."""
        self._ended = True
        self._given_up = False
        self._hand_over(None)

    def drop(self) -> None:
        """Nobody reads any more: what is here and what comes is thrown away, and holds up no sender."""
        self._dropping = True
        self._outstanding_bytes -= sum(size for _, size in self._arrived)
        self._arrived.clear()
        self._wake_sender()

    def abandon(self) -> None:
        """The call is dead at the receiver's end: readers see the end at once."""
        self.drop()
        self.end()

    def _arrive(self, data: bytes, size: int) -> None:
        if self._ended:
            return
        if self._dropping or self._given_up:
            self._given_up = False
            self._outstanding_bytes -= size
            self._wake_sender()
        elif not self._hand_over((data, size)):
            self._arrived.append((data, size))

    def _hand_over(self, message: tuple[bytes, int] | None) -> bool:
        """Give a message, or the end, to who waits for it. It is theirs then, whatever becomes of the call."""
        if self._reader is None or self._reader.done():
            return False
        self._reader.set_result(message)
        return True

    def _taken(self, message: tuple[bytes, int] | None) -> bytes | None:
        if message is None:
            return None
        data, size = message
        self._outstanding_bytes -= size
        self._wake_sender()
        return data

    def _full(self, beside: int = 0) -> bool:
        return self._outstanding_bytes - beside >= (self._window_bytes or self._line.window_bytes)

    def _wake_sender(self) -> None:
        if self._sender is not None and not self._sender.done() and (self._closed or not self._full()):
            self._sender.set_result(None)
