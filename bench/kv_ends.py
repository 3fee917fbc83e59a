"""The two processes of bench/kv.py: what sends and what takes, in each of three ways.

Driven by `kv`. Each process settles as a service does, on a core of its own. The taking one reports after each measurement.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import uvloop

from pdd.identity import Instance, RequestId
from pdd.kv.hashing import chain_hashes
from pdd.kv.layout import DENSE_F16, KvLayout
from pdd.kv.store import BlockStore
from pdd.kv.wire import blocks_per_frame
from pdd.rpc.channel import open_channel
from pdd.rpc.memory import keep_freed_memory
from pdd.rpc.server import serve
from pdd.transfer.base import Received, Refusal
from pdd.transfer.feed import BlockFeed
from pdd.transfer.messages import SERVICE, add_push
from pdd.transfer.outbound import OfferedKv
from pdd.transfer.receiver import Receiver
from pdd.transfer.sender import send

RAW, GRPC, PUSH = "raw TCP", "bare gRPC", "KV push"
WAYS = (RAW, GRPC, PUSH)

HOST = "127.0.0.1"
BLOCK_TOKENS = 16
LEASE_S = 600.0
ACK = b"\1"
REALTIME_PRIORITY = 20


@dataclass(frozen=True)
class Shape:
    block_bytes: int
    blocks: int  # a push
    rounds: int

    @property
    def total_bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(range(self.blocks * BLOCK_TOKENS))

    @property
    def layout(self) -> KvLayout:
        return KvLayout("model", "tokenizer", 1, 1, 1, BLOCK_TOKENS, (DENSE_F16,), self.block_bytes, "bench")


@dataclass(frozen=True)
class Place:
    core: int
    realtime: bool  # run before everything else on that core

    def settle(self) -> None:
        os.sched_setaffinity(0, {self.core})
        if self.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
        keep_freed_memory(os.environ)


@dataclass(frozen=True)
class TargetReport:
    """Of one measurement."""

    cpu_s: float
    peak_mib: int  # of the process, so far


@dataclass(frozen=True)
class TargetAddress:
    raw_port: int
    grpc: str


def request_of(round_number: int) -> RequestId:
    return RequestId(0xBE, round_number)


# ── the taking process ──


class RawTarget(asyncio.BufferedProtocol):
    """Counts bytes, and acknowledges each `total`."""

    def __init__(self, total: int, report: Callable[[], None]) -> None:
        self._total, self._report, self._left = total, report, total
        self._buffer = memoryview(bytearray(1 << 20))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left == 0:
            self._left = self._total
            self._report()
            self._transport.write(ACK)


class ReleasesAtOnce:
    """A listener that has no use for KV."""

    def __init__(self, receiver: Receiver, report: Callable[[], None]) -> None:
        self._receiver, self._report = receiver, report

    def wanted(self, missing_blocks: int, missing_bytes: int) -> None:
        pass

    def ready(self, received: Received) -> None:
        self._receiver.release(received.request)
        self._report()

    def failed(self, reason: Refusal | None, message: str) -> None:
        raise RuntimeError(f"a push failed: {reason} {message}")


def run_target(shape: Shape, place: Place, parent: Connection) -> None:
    """Sends `parent` its address, then a report after each measurement; runs until it is terminated."""
    place.settle()
    uvloop.run(_target(shape, parent))


async def _target(shape: Shape, parent: Connection) -> None:
    spent_s = time.process_time()

    def report() -> None:
        nonlocal spent_s
        now_s = time.process_time()
        parent.send(TargetReport(now_s - spent_s, _peak_mib()))
        spent_s = now_s

    async def take_bare(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        left = shape.total_bytes
        while left:
            left -= len(await context.read())
        report()
        await context.write(ACK)

    receiver = Receiver(shape.layout, BlockStore(shape.total_bytes))

    def register(server: grpc.aio.Server) -> Sequence[str]:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(take_bare)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Stream": handler}),))
        add_push(server, receiver.push)
        return (SERVICE,)

    raw = await asyncio.get_running_loop().create_server(lambda: RawTarget(shape.total_bytes, report), HOST, 0)
    async with raw, receiver, serve(f"{HOST}:0", register) as server:
        for number in range(shape.rounds + 1):
            receiver.admit(request_of(number), shape.prompt, "", LEASE_S, ReleasesAtOnce(receiver, report))
        parent.send(TargetAddress(raw.sockets[0].getsockname()[1], server.address))
        await asyncio.Event().wait()


def _peak_mib() -> int:
    # Not getrusage's figure, which begins with the size of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


# ── the sending process ──


class RawSource(asyncio.Protocol):
    def __init__(self) -> None:
        self._writable, self._acknowledged = asyncio.Event(), asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._acknowledged.set()

    async def push(self, chunks: Sequence[bytes]) -> None:
        self._acknowledged.clear()
        for chunk in chunks:
            self._transport.write(chunk)
            if not self._writable.is_set():
                await self._writable.wait()
        await self._acknowledged.wait()


@dataclass
class Source:
    blocks: Sequence[bytes]
    chunks: Sequence[bytes]  # the blocks of each frame, joined
    offer: OfferedKv
    raw: RawSource
    channel: grpc.aio.Channel

    async def push(self, way: str, round_number: int) -> None:
        """Returns when the target has everything."""
        if way == RAW:
            await self.raw.push(self.chunks)
        elif way == GRPC:
            await self._push_bare()
        else:
            await self._push_kv(request_of(round_number))

    async def _push_bare(self) -> None:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = self.channel.stream_stream("/bench/Stream")()
        for chunk in self.chunks:
            await call.write(chunk)
        await call.read()
        call.cancel()

    async def _push_kv(self, request: RequestId) -> None:
        feed = BlockFeed()
        feed.append(self.blocks)
        feed.complete(first_token=0, final=True)
        offer = replace(self.offer, request=request)
        await send(self.channel, offer, feed, on_wanted=lambda blocks, missing: None, lease_s=LEASE_S)


@asynccontextmanager
async def source(shape: Shape, target: TargetAddress) -> AsyncIterator[Source]:
    # Each in memory of its own: those of a prompt fit no cache either.
    blocks = [os.urandom(shape.block_bytes) for _ in range(shape.blocks)]
    step = blocks_per_frame(shape.block_bytes)
    chunks = blocks if step == 1 else [b"".join(blocks[at : at + step]) for at in range(0, shape.blocks, step)]
    hashes = chain_hashes(shape.prompt, BLOCK_TOKENS, "")
    offer = OfferedKv(request_of(0), Instance("bench", 1), shape.layout, len(shape.prompt), hashes)
    transport, raw = await asyncio.get_running_loop().create_connection(RawSource, HOST, target.raw_port)
    async with open_channel(target.grpc) as channel:
        yield Source(blocks, chunks, offer, raw, channel)
    transport.close()
