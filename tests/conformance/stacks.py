"""What the suite runs over: gRPC on loopback and the network in memory, behind one interface; and what its tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
import grpc.aio

from pdd.rpc.channel import KEEPALIVE_OPTIONS, MAX_MESSAGE_BYTES, MESSAGE_OPTIONS, open_channel
from tests.conformance.echo import Request, Stub, add_echo
from virtual.clock import VirtualLoop
from virtual.network import Network
from wan.link import LinkSettings
from wan.relay import Relay

SETTLE_S = 0.2  # whatever is under way has arrived by then
SOON_S = 10.0  # for what must happen; costs nothing where it does
MEBIBYTE = bytes(1 << 20)
TOO_LARGE = bytes(MAX_MESSAGE_BYTES + 1)
# All that a write says of a call that has ended under it.
DEAD = (grpc.StatusCode.INTERNAL, "Internal error from Core")

Behaviour = Callable[[Any, Any], Any]


class Stack(Protocol):
    """Leaving it as a context takes the link down, if there is one."""

    def open_channel(self, address: str) -> grpc.aio.Channel: ...

    def new_server(self) -> grpc.aio.Server: ...

    @property
    def host(self) -> str:
        """Where servers listen."""

    @property
    def nowhere(self) -> str:
        """An address on which nobody listens."""

    async def across_link(self, address: str) -> str:
        """The address by which a server is reached across the link."""

    async def set_link(self, settings: LinkSettings) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class Grpc:
    host = "127.0.0.1"
    nowhere = "127.0.0.1:1"

    def __init__(self) -> None:
        self._relay = Relay(LinkSettings(), self.host, Random(1))

    def open_channel(self, address: str) -> grpc.aio.Channel:
        return open_channel(address)

    def new_server(self) -> grpc.aio.Server:
        return grpc.aio.server(options=[*MESSAGE_OPTIONS, *KEEPALIVE_OPTIONS, ("grpc.so_reuseport", 0)])

    async def across_link(self, address: str) -> str:
        return await self._relay.lease(address, address)

    async def set_link(self, settings: LinkSettings) -> None:
        await self._relay.configure(settings)

    async def __aenter__(self) -> Self:
        await self._relay.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._relay.__aexit__(None, None, None)


class InMemory:
    host = "server"
    nowhere = "server:1"

    def __init__(self) -> None:
        self._network = Network()
        self._network.configure("a", "b", LinkSettings(rtt_ms=1.0))
        self._client, self._server = self._network.host("client", "a"), self._network.host("server", "b")

    def open_channel(self, address: str) -> grpc.aio.Channel:
        return self._client.open_channel(address)

    def new_server(self) -> grpc.aio.Server:
        return self._server.new_server()

    async def across_link(self, address: str) -> str:
        return address

    async def set_link(self, settings: LinkSettings) -> None:
        self._network.configure("a", "b", settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


def stack_of_this_loop() -> Stack:
    return InMemory() if isinstance(asyncio.get_running_loop(), VirtualLoop) else Grpc()


@dataclass(slots=True)
class Site:
    """A stack with servers and channels on it, all closed on leaving."""

    stack: Stack
    _life: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def serve(self, address: str | None = None, **behaviours: Behaviour) -> Served:
        server = self.stack.new_server()
        add_echo(server, **behaviours)
        port = server.add_insecure_port(address or f"{self.stack.host}:0")
        await server.start()
        self._life.push_async_callback(server.stop, None)
        return Served(server, address or f"{self.stack.host}:{port}")

    async def connect(self, **behaviours: Behaviour) -> Any:
        """A stub of a new server."""
        return self.stub((await self.serve(None, **behaviours)).address)

    def stub(self, address: str) -> Any:
        return Stub(self.channel(address))

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = self.stack.open_channel(address)
        self._life.push_async_callback(channel.close)
        return channel

    async def __aenter__(self) -> Self:
        await self._life.enter_async_context(self.stack)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._life.aclose()


@dataclass(frozen=True, slots=True)
class Served:
    server: grpc.aio.Server
    address: str


async def settle() -> None:
    """Until whatever is under way has arrived."""
    await asyncio.sleep(SETTLE_S)


class Log:
    """What handlers saw, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.entries: list[object] = []
        self._added = asyncio.Event()

    def add(self, entry: object) -> None:
        self.entries.append(entry)
        self._added.set()

    async def until(self, count: int) -> list[object]:
        """The entries, once there are `count`. Raises TimeoutError."""
        async with asyncio.timeout(SOON_S):
            while len(self.entries) < count:
                self._added.clear()
                await self._added.wait()
        return self.entries


async def outcome(awaitable: Any) -> object:
    """What an operation of a call or a context comes to, as something to compare."""
    try:
        result = await awaitable
    except grpc.aio.AioRpcError as error:
        # gRPC wraps the details of an end that was not the server's word, at times.
        return (error.code(), (error.details() or "").removeprefix("Stream removed (").removesuffix(")"))
    except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.BaseError) as error:
        return _public(type(error))
    return "end" if result is grpc.aio.EOF else result


async def code_of(awaitable: Any) -> object:
    """The code alone, where the details are each stack's own."""
    what = await outcome(awaitable)
    return what[0] if isinstance(what, tuple) else what


async def collect(call: Any) -> list[Any]:
    return [reply async for reply in call]


async def write_until_it_fails(call: Any) -> object:
    """What the write comes to that can't be done any more. The peer must not read."""
    while (what := await outcome(call.write(Request(payload=MEBIBYTE)))) is None:
        pass
    return what


def is_too_large(what: object, end: str) -> bool:
    return (
        isinstance(what, tuple) and what[0] is grpc.StatusCode.RESOURCE_EXHAUSTED and what[1].startswith(f"{end}: Sent message")
    )


def _public(kind: type[BaseException]) -> type[BaseException]:
    """The error's public type: gRPC raises private subclasses."""
    known = (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AbortError, grpc.aio.InternalError)
    return next((public for public in known if issubclass(kind, public)), grpc.aio.BaseError)
