"""The floor under `bench/gateway.py`: what sending a chunk costs by itself, in a uvloop process that does nothing else."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import cast

import uvloop

WRITES = 60_000
STEPS = 400  # at most: a paced run lasts as long as its steps
LOOK_S = 0.00025  # as in gateway_load.c


async def bare_write_us(streams: int, pace_s: float, size: int, core: int, reader_core: int) -> float:
    """CPU microseconds of the sending process a chunk of `size` bytes, one to each of `streams` connections every `pace_s`."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        measured = pool.submit(partial(_measure, streams, pace_s, size, core, reader_core))
        return await asyncio.wrap_future(measured)


def _measure(streams: int, pace_s: float, size: int, core: int, reader_core: int) -> float:
    os.sched_setaffinity(0, {core})
    return uvloop.run(_send(streams, pace_s, size, reader_core))


async def _send(streams: int, pace_s: float, size: int, reader_core: int) -> float:
    transports: asyncio.Queue[asyncio.Transport] = asyncio.Queue()
    server = await asyncio.get_running_loop().create_server(partial(_Sender, transports), "127.0.0.1", 0)
    reader = multiprocessing.get_context("spawn").Process(
        target=_read, args=(server.sockets[0].getsockname()[1], streams, reader_core), daemon=True
    )
    reader.start()
    connected = [await transports.get() for _ in range(streams)]
    data, steps = b"x" * size, min(STEPS, max(100, WRITES // streams))
    before_s = time.process_time()
    for _ in range(steps):
        for transport in connected:
            transport.write(data)
        await asyncio.sleep(pace_s)
    cpu_s = time.process_time() - before_s
    for transport in connected:
        transport.close()
    server.close()
    await asyncio.to_thread(reader.join)
    return cpu_s / (steps * streams) * 1e6


class _Sender(asyncio.Protocol):
    def __init__(self, transports: asyncio.Queue[asyncio.Transport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.put_nowait(cast(asyncio.Transport, transport))  # uvloop's own class is no subclass of it


def _read(port: int, streams: int, core: int) -> None:
    os.sched_setaffinity(0, {core})
    poll = select.epoll()
    sockets = {}
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        sockets[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    while sockets:
        ready = poll.poll(0)
        if not ready:
            time.sleep(LOOK_S)
        for descriptor, _ in ready:
            if not sockets[descriptor].recv(1 << 16):
                poll.unregister(descriptor)
                sockets.pop(descriptor).close()
