"""A connection between a client and a server, from the first packet on.

Made by `network` for `dialer`, which owns the client's end. It takes two round trips to come up, one for TCP and one for HTTP/2's
settings; each `stream` on it is a call. `network` breaks it when its link or a host fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pdd.rpc.channel import KEEPALIVE_S, MAX_MESSAGE_BYTES, PING_TIMEOUT_S
from virtual.charge import control
from virtual.line import Deliver, Line, LineFlow, Link
from virtual.link import Flow
from wan.link import Outage

if TYPE_CHECKING:
    from virtual.stream import Stream

_HANDSHAKE = control("handshake", 60)

REFUSED = "Connection refused"


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What the options of `pdd.rpc.channel` and `pdd.rpc.server` make of gRPC."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    connect_timeout_s: float = 2.0
    first_backoff_s: float = 0.2  # between failed attempts to connect
    backoff_growth: float = 1.6
    max_backoff_s: float = 2.0
    silence_s: float = KEEPALIVE_S + PING_TIMEOUT_S  # of a connection, after which both ends give it up


class Acceptor(Protocol):
    """A server as connections see it."""

    @property
    def listening(self) -> bool: ...

    def connected(self, connection: Connection) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...

    def accept(self, stream: Stream) -> None:
        """A call has come."""


class Opener(Protocol):
    """The client's end of a connection."""

    def connected(self, connection: Connection) -> None: ...

    def draining(self, connection: Connection) -> None:
        """The server takes no new calls on it."""

    def lost(self, connection: Connection, why: str) -> None:
        """It is broken, or never came up."""


@dataclass(frozen=True, slots=True)
class Route:
    """From a client to an address."""

    client_name: str
    link: Link
    up: Line
    down: Line
    listener: Callable[[], Acceptor | None]  # who listens at the address now
    window_bytes: int | None = None  # what the client lets a server send that it has not read; None leaves it to the line


class Connection:
    def __init__(self, route: Route, max_message_bytes: int, opener: Opener, on_over: Callable[[Connection], None]) -> None:
        """`on_over` is called when nothing can happen on it any more."""
        self.route = route
        self.max_message_bytes = max_message_bytes
        self.broken = False
        self._streams: dict[Stream, None] = {}  # calls that have not ended at both ends
        self._opener = opener
        self._on_over = on_over
        self._draining = False
        self._server: Acceptor | None = None
        # Each way stalls by itself.
        self._up_flow: LineFlow = Flow((self, "up"))
        self._down_flow: LineFlow = Flow((self, "down"))

    def dial(self) -> None:
        self._send_up(self._knocked)

    def accept(self, stream: Stream) -> None:
        assert self._server is not None
        self._server.accept(stream)

    def add(self, stream: Stream) -> None:
        self._streams[stream] = None

    def remove(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        if self._draining and not self._streams and not self.broken:
            self._on_over(self)

    def go_away(self) -> None:
        """The server takes no new calls here; those that run go on."""
        self._draining = True
        self._send_down(partial(self._opener.draining, self))

    def hang_up(self) -> None:
        """The client is done with it, and has cancelled its calls."""
        self._send_up(partial(self.break_, "the client has hung up"))

    def break_(self, why: str) -> None:
        """Both ends find it broken at once; nothing that is under way arrives."""
        if self.broken:
            return
        self.broken = True
        for stream in tuple(self._streams):
            stream.broken(why)
        if self._server is not None:
            self._server.disconnected(self)
        self._opener.lost(self, why)
        self._on_over(self)

    def _knocked(self) -> None:
        refusing = self.route.link.settings.outage in (Outage.REFUSE, Outage.RESET)
        server = None if refusing else self.route.listener()
        if server is None:
            self._send_down(partial(self.break_, REFUSED))
        else:
            self._send_down(partial(self._send_up, partial(self._greeted, server)))

    def _greeted(self, server: Acceptor) -> None:
        if not server.listening:
            self._send_down(partial(self.break_, REFUSED))
            return
        self._server = server
        server.connected(self)
        self._send_down(partial(self._opener.connected, self))

    def _send_up(self, arrived: Deliver) -> None:
        self.route.up.send(self._up_flow, _HANDSHAKE, partial(self._unless_broken, arrived))

    def _send_down(self, arrived: Deliver) -> None:
        self.route.down.send(self._down_flow, _HANDSHAKE, partial(self._unless_broken, arrived))

    def _unless_broken(self, arrived: Deliver) -> None:
        if not self.broken:
            arrived()
