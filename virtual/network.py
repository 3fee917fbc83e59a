"""A network in memory: hosts at sites, a link between each two sites, and who listens where.

Made by tests and benchmarks on a running event loop, virtual or not. Each process of the mesh gets a `Host`, which opens channels
and makes servers like gRPC's. The test changes links while calls run, crashes hosts, and reads what has crossed.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from random import Random

from virtual.channel import VirtualChannel
from virtual.charge import Meter, Tally
from virtual.connection import Connection, Opener, Route, TransportSettings
from virtual.dialer import Dialer
from virtual.line import Link
from virtual.server import VirtualServer
from wan.link import LinkSettings, Outage

TOKEN_WINDOW_BYTES = 64 << 10
_FIRST_PORT = 50051


class Network:
    def __init__(self, *, seed: int = 0, transport: TransportSettings | None = None) -> None:
        """`seed` decides jitter and loss. Links have no limits until they are configured."""
        self.meter = Meter()
        self.transport = transport or TransportSettings()
        self._loop = asyncio.get_running_loop()
        self._seed = seed
        self._hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._connections: dict[Connection, tuple[Host, Host]] = {}  # and the hosts of client and server
        self._silences: dict[Link, asyncio.TimerHandle] = {}  # until both ends give their connections up

    def host(self, name: str, site: str) -> Host:
        """A new machine called `name`. Raises ValueError where there is one."""
        if name in self._hosts:
            raise ValueError(f"there is a host {name!r} already: use it, or another name")
        self._hosts[name] = Host(self, name, site)
        return self._hosts[name]

    def configure(self, site: str, other: str, settings: LinkSettings) -> None:
        """Change the link between two sites, or within one, under its running calls."""
        link = self._link(site, other)
        link.configure(settings)
        silence = self._silences.pop(link, None)
        if silence is not None:
            silence.cancel()
        if settings.outage is Outage.RESET:
            self._break(link, "Connection reset")
        elif settings.outage is Outage.BLACK_HOLE:
            give_up = self._loop.call_later(self.transport.silence_s, self._break, link, "keepalive watchdog timeout")
            self._silences[link] = give_up

    def settings(self, site: str, other: str) -> LinkSettings:
        return self._link(site, other).settings

    def crossed(self, source: str, target: str) -> dict[str, Tally]:
        """What has arrived at site `target` from another site `source`, by kind of message."""
        return self._link(source, target).lines(source)[0].crossed

    def connect(
        self, client: Host, client_name: str, address: str, window_bytes: int | None, opener: Opener
    ) -> Connection | None:
        """A connection to be dialled; None where no host has the address's name. Called by hosts."""
        target = self._hosts.get(address.rpartition(":")[0])
        if target is None:
            return None
        link = self._link(client.site, target.site)
        up, down = link.lines(client.site)
        route = Route(client_name, link, up, down, partial(target.listener, address), window_bytes)
        connection = Connection(route, self.transport.max_message_bytes, opener, self._forget)
        self._connections[connection] = (client, target)
        return connection

    def crashed(self, host: Host) -> None:
        for connection, ends in tuple(self._connections.items()):
            if host in ends:
                connection.break_("Connection reset by peer")

    def _link(self, site: str, other: str) -> Link:
        sites = (min(site, other), max(site, other))
        if sites not in self._links:
            self._links[sites] = Link(*sites, LinkSettings(), lambda name: Random(f"{self._seed} {name}"))
        return self._links[sites]

    def _break(self, link: Link, why: str) -> None:
        for connection in tuple(self._connections):
            if connection.route.link is link:
                connection.break_(why)

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


class Host:
    """One machine: what a process of the mesh has instead of gRPC."""

    def __init__(self, network: Network, name: str, site: str) -> None:
        self.name = name
        self.site = site
        self._network = network
        self._listening: dict[str, VirtualServer] = {}  # by address
        self._channels = itertools.count(1)
        self._ports = itertools.count(_FIRST_PORT)

    def open_channel(self, address: str) -> VirtualChannel:
        """A channel to `address` ("host:port"), connected at the first call. Leaving it as a context cancels its calls."""
        return self._open(address, None)

    def open_token_channel(self, address: str) -> VirtualChannel:
        """The same with a bound on what may wait here unread, as `pdd.rpc.channel.open_token_channel` sets it."""
        return self._open(address, TOKEN_WINDOW_BYTES)

    def new_server(self) -> VirtualServer:
        """A server to add servicers to, and to start on an address of this host."""
        return VirtualServer(self, self._network.meter)

    def crash(self) -> None:
        """As if the process died: nobody listens here any more, and every connection is reset."""
        self._listening.clear()
        self._network.crashed(self)

    def _open(self, address: str, window_bytes: int | None) -> VirtualChannel:
        network, name = self._network, f"virtual:{self.name}:{next(self._channels)}"
        dialer = Dialer(address, partial(network.connect, self, name, address, window_bytes), network.transport)
        return VirtualChannel(dialer, network.meter)

    def bind(self, address: str, server: VirtualServer) -> int:
        """The port; any free one where `address` has port 0. Raises RuntimeError as gRPC does."""
        name, _, port_text = address.rpartition(":")
        port = int(port_text) or next(self._ports)
        bound = f"{self.name}:{port}"
        if name != self.name or bound in self._listening:
            why = "it is taken" if name == self.name else f"this is host {self.name!r}"
            raise RuntimeError(f"Failed to bind to address {address}: {why}")
        self._listening[bound] = server
        return port

    def release(self, server: VirtualServer) -> None:
        """Nobody listens at the server's addresses any more."""
        self._listening = {address: one for address, one in self._listening.items() if one is not server}

    def listener(self, address: str) -> VirtualServer | None:
        server = self._listening.get(address)
        return server if server is not None and server.listening else None
