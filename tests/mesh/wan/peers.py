"""Plain TCP peers on either side of the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from wan.relay import Relay

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[str], Awaitable[Streams]]

HOST = "127.0.0.1"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until its end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read to the end, then say how many bytes came."""
    total = 0
    try:
        while data := await reader.read(65536):
            total += len(data)
        writer.write(total.to_bytes(8, "big"))
    except ConnectionError:
        return
    finally:
        writer.close()


async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never read."""
    try:
        await asyncio.Event().wait()
    finally:
        writer.close()


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    """A server whose connections `handler` serves; yields its "host:port". Leaving cancels them."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except asyncio.CancelledError:
            return  # the streams' own callback would report it as an error
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """A function that connects to a "host:port"; leaving closes what it opened."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(address: str) -> Streams:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def forwarded(relay: Relay, handler: Handler, name: str = "main-0") -> AsyncIterator[str]:
    """A server reached over the relay; yields the forwarded address."""
    async with listening(handler) as target:
        yield await relay.lease(name, target)


async def exchange(streams: Streams, message: bytes) -> bytes:
    """Send a message to `echo` and read it back."""
    reader, writer = streams
    writer.write(message)
    return await reader.readexactly(len(message))
