"""Links in virtual time: the model of `link`, once for each direction, with the loop's clock and a timer.

Called by `connection` and `pipe`, which send, and made by `network`. Owns the timers and the counts of what has crossed; knows
nothing of calls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from virtual.charge import Charge, Tally
from virtual.link import Direction, Flow
from wan.link import LinkSettings

Deliver: TypeAlias = Callable[[], None]
LineFlow: TypeAlias = Flow[tuple[Charge, Deliver]]

MIN_WINDOW_BYTES = 4 << 20
FASTEST_BYTES_PER_S = 1.25e9  # for the window of a link without a limit


class Line:
    """One way of a link."""

    def __init__(self, settings: LinkSettings, random: Random) -> None:
        """Must be made on a running event loop."""
        self.crossed: dict[str, Tally] = {}  # by kind of message
        self._loop = asyncio.get_running_loop()
        self._direction: Direction[tuple[Charge, Deliver]] = Direction(settings, random)
        self.window_bytes = _window_bytes(settings)  # of a call: sent, and not yet taken by its receiver
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # the timer's time

    def send(self, flow: LineFlow, charge: Charge, deliver: Deliver) -> None:
        """Call `deliver` when the message has crossed, never before this returns."""
        self._direction.offer(flow, (charge, deliver), charge.link_bytes, self._loop.time())
        self._schedule()

    def discard(self, flow: LineFlow) -> None:
        """Forget what of a call is not on the line yet."""
        self._direction.discard(flow, self._loop.time())
        self._schedule()

    def configure(self, settings: LinkSettings) -> None:
        self._direction.configure(settings, self._loop.time())
        self.window_bytes = _window_bytes(settings)
        self._schedule()

    def _tick(self) -> None:
        self._timer = None
        crossed = self.crossed
        for charge, deliver in self._direction.advance(self._loop.time()):
            tally = crossed.get(charge.kind)
            if tally is None:
                tally = crossed[charge.kind] = Tally()
            tally.add(charge)
            deliver()
        self._schedule()

    def _schedule(self) -> None:
        due_s = self._direction.next_s()
        if self._timer is not None:
            if due_s is None or self._due_s <= due_s:
                return  # it comes early, and finds nothing to do
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._due_s = due_s
            self._timer = self._loop.call_at(due_s, self._tick)


class Link:
    """Both ways between two sites; or within one, from clients to servers and back."""

    def __init__(self, one: str, other: str, settings: LinkSettings, random: Callable[[str], Random]) -> None:
        """`random` makes the source of a direction's jitter and loss, given its name. Must be made on a running event loop."""
        self.settings = settings
        self._one = one
        self._there = Line(settings, random(f"{one} to {other}"))
        self._back = Line(settings, random(f"{other} back to {one}"))

    def lines(self, client_site: str) -> tuple[Line, Line]:
        """The line up to the server, and the one down."""
        return (self._there, self._back) if client_site == self._one else (self._back, self._there)

    def configure(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._there.configure(settings)
        self._back.configure(settings)


def _window_bytes(settings: LinkSettings) -> int:
    """Twice what fills the link in a round trip: gRPC probes for it, and sizes its flow control windows alike."""
    filling = min(settings.bytes_per_s, FASTEST_BYTES_PER_S) * settings.rtt_ms / 1000
    return max(MIN_WINDOW_BYTES, round(2 * filling))
