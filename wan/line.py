"""The line, moving real bytes: the model of `link`, once for each direction, with an event loop's clock and a timer.

Called by `connection`, which sends chunks and is handed them when they arrive. Owns the timers and the order of those who wait
for room in the queue; knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from random import Random
from typing import Protocol

from wan.link import Chunk, Direction, LinkSettings, Outage


class Mark(enum.Enum):
    """What travels beside bytes, in its place among them."""

    END = "end"  # no more bytes: half-close
    RESET = "reset"  # the connection broke


Item = bytes | Mark


class Flow(Protocol):
    """A connection's stake in one direction."""

    def arrive(self, item: Item) -> None:
        """Bytes or a mark have crossed the line. Must not block."""


_Chunk = Chunk[Flow, Item]


class Line:
    def __init__(self, settings: LinkSettings, random: Random) -> None:
        """Must be made on a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._direction: Direction[Flow, Item] = Direction(settings, random)
        self._waiting: deque[tuple[asyncio.Future[None], _Chunk]] = deque()
        self._timer: asyncio.Handle | None = None
        self._due_s = math.inf  # the timer's time

    @property
    def settings(self) -> LinkSettings:
        return self._direction.settings

    async def send(self, flow: Flow, item: Item) -> None:
        """Queue an item for `flow.arrive`; returns once it is in the queue, in the order of the calls."""
        chunk = Chunk(flow, item, len(item) if isinstance(item, bytes) else 0)
        now_s = self._loop.time()
        if self._waiting or not self._direction.has_room(now_s):
            turn = self._loop.create_future()
            self._waiting.append((turn, chunk))
            await turn
        else:
            self._direction.push(chunk, now_s)
            self._schedule()

    def configure(self, settings: LinkSettings) -> None:
        self._direction.configure(settings, self._loop.time())
        self._let_in(self._loop.time())
        self._schedule()

    def close(self) -> None:
        """Stop moving; what is on the line is lost. The caller has ended the connections."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        # A timer may fire a little before its time; the line has no use for the difference.
        now_s = max(self._loop.time(), self._due_s)
        for chunk in self._direction.advance(now_s):
            chunk.flow.arrive(chunk.item)
        self._let_in(now_s)
        self._schedule()

    def _let_in(self, now_s: float) -> None:
        while self._waiting and self._direction.has_room(now_s):
            turn, chunk = self._waiting.popleft()
            if not turn.done():  # done: its connection was cancelled
                self._direction.push(chunk, now_s)
                turn.set_result(None)

    def _schedule(self) -> None:
        due_s = self._direction.next_s()
        if self._timer is not None:
            if due_s is not None and self._due_s <= due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._due_s = due_s
            self._timer = self._loop.call_at(due_s, self._tick)


class Link:
    """Both directions. Site A is where connections come from, B where they go to."""

    def __init__(self, settings: LinkSettings, random: Random) -> None:
        """Must be made on a running event loop."""
        self.a_to_b = Line(settings, Random(random.getrandbits(64)))
        self.b_to_a = Line(settings, Random(random.getrandbits(64)))
        self._settings = settings
        self._passing = asyncio.Event()
        self.configure(settings)

    @property
    def settings(self) -> LinkSettings:
        return self._settings

    def configure(self, settings: LinkSettings) -> None:
        self._settings = settings
        self.a_to_b.configure(settings)
        self.b_to_a.configure(settings)
        if settings.outage is Outage.BLACK_HOLE:
            self._passing.clear()
        else:
            self._passing.set()

    async def passing(self) -> None:
        """Wait until the line is no black hole."""
        await self._passing.wait()

    def close(self) -> None:
        self.a_to_b.close()
        self.b_to_a.close()
