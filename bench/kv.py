"""How fast KV travels: a push through the real sender and receiver, beside a raw TCP stream of the same chunks.

    python -m bench.kv                        one shape, five rounds
    python -m bench.kv --block-kib 360        another block, here SmolLM2-135M's

Two processes, one core each. Every round measures, one after the other and over the same two processes:

    raw TCP   uvloop, chunks written as the transport takes them, read into one buffer (BufferedProtocol) and dropped
    gRPC      the same chunks as messages of a bare stream of bytes, read and dropped: what any transfer over grpc.aio could reach
    KV push   offer, want, frames under credit, commit: every block's checksum made and verified, every block held in the
              BlockStore until the commit, as a decoder holds it

A push is timed from the offer to Committed, the streams from the first write to the last byte's acknowledgement. The first round
warms up and is shown apart: memory is touched for the first time in it. Ratios are taken within a round, so that what else the
machine does weighs on both sides of them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
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

TARGET_CORE, SOURCE_CORE = 0, 1
HOST = "127.0.0.1"
BLOCK_TOKENS = 16
LEASE_S = 600.0
ACK = b"\1"
DISTINCT_BLOCKS = 32  # of random bytes, repeated: more would only measure how a cold source is read
RESULTS = Path(__file__).parent / "results"
KINDS = ("raw TCP", "gRPC", "KV push")


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
class Effort:
    """One measurement of one kind."""

    wall_s: float
    source_cpu_s: float
    target_cpu_s: float
    target_rss_mib: int


@dataclass(frozen=True)
class Ports:
    raw: int
    stream: int
    push: str


def request_of_round(number: int) -> RequestId:
    return RequestId(0xBE, number)


def settle(core: int) -> None:
    """What a service does at its start, and a core of its own."""
    os.sched_setaffinity(0, {core})
    keep_freed_memory(os.environ)


# ── the receiving process ──


class RawTarget(asyncio.BufferedProtocol):
    """Counts bytes; acknowledges each `total`."""

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


def run_target(shape: Shape, parent: Connection) -> None:
    settle(TARGET_CORE)
    uvloop.run(_target(shape, parent))


async def _target(shape: Shape, parent: Connection) -> None:
    """Serves all three kinds; sends the parent its CPU seconds and peak memory whenever a measurement is complete."""
    spent = time.process_time()

    def report() -> None:
        nonlocal spent
        now = time.process_time()
        parent.send((now - spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10))
        spent = now

    async def bare_stream(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        left = shape.total_bytes
        while left:
            left -= len(await context.read())
        report()
        await context.write(ACK)

    receiver = Receiver(shape.layout, BlockStore(shape.total_bytes))

    def register(server: grpc.aio.Server) -> Sequence[str]:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(bare_stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Stream": handler}),))
        add_push(server, receiver.push)
        return (SERVICE,)

    raw = await asyncio.get_running_loop().create_server(lambda: RawTarget(shape.total_bytes, report), HOST, 0)
    async with raw, receiver, serve(f"{HOST}:0", register) as server:
        for number in range(shape.rounds + 1):
            receiver.admit(request_of_round(number), shape.prompt, "", LEASE_S, ReleasesAtOnce(receiver, report))
        parent.send((raw.sockets[0].getsockname()[1], server.address))
        await asyncio.Event().wait()


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
    chunks: Sequence[bytes]  # the blocks of a frame, joined
    raw: RawSource
    channel: grpc.aio.Channel
    offer: OfferedKv

    async def push(self, kind: str, number: int) -> None:
        if kind == "raw TCP":
            await self.raw.push(self.chunks)
        elif kind == "gRPC":
            call: grpc.aio.StreamStreamCall[bytes, bytes] = self.channel.stream_stream("/bench/Stream")()
            for chunk in self.chunks:
                await call.write(chunk)
            await call.read()
            call.cancel()
        else:
            await self._push_kv(request_of_round(number))

    async def _push_kv(self, request: RequestId) -> None:
        offer = replace(self.offer, request=request)
        feed = BlockFeed()
        feed.append(self.blocks)
        feed.complete(first_token=0, final=True)
        await send(self.channel, offer, feed, on_wanted=lambda blocks, total: None, lease_s=LEASE_S)


def frames_of(blocks: Sequence[bytes], step: int) -> list[bytes]:
    """The payloads of the frames that the blocks travel in; equal ones share their memory, as equal blocks do."""
    frames: dict[bytes, bytes] = {}
    joined = (b"".join(blocks[at : at + step]) for at in range(0, len(blocks), step))
    return [frames.setdefault(frame, frame) for frame in joined]


@asynccontextmanager
async def source(shape: Shape, raw_port: int, address: str) -> AsyncIterator[Source]:
    distinct = [os.urandom(shape.block_bytes) for _ in range(DISTINCT_BLOCKS)]
    blocks = [distinct[index % DISTINCT_BLOCKS] for index in range(shape.blocks)]
    chunks = frames_of(blocks, blocks_per_frame(shape.block_bytes))
    hashes = chain_hashes(shape.prompt, BLOCK_TOKENS, "")
    offer = OfferedKv(request_of_round(0), Instance("bench", 1), shape.layout, len(shape.prompt), hashes)
    transport, raw = await asyncio.get_running_loop().create_connection(RawSource, HOST, raw_port)
    async with open_channel(address) as channel:
        yield Source(blocks, chunks, raw, channel, offer)
    transport.close()


async def measure(shape: Shape, target: Connection) -> list[dict[str, Effort]]:
    raw_port, address = target.recv()
    rounds = []
    async with source(shape, raw_port, address) as from_here:
        for number in range(shape.rounds + 1):
            round_: dict[str, Effort] = {}
            for kind in KINDS:
                cpu_s, wall_s = time.process_time(), time.perf_counter()
                await from_here.push(kind, number)
                wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
                round_[kind] = Effort(wall_s, cpu_s, *target.recv())
            rounds.append(round_)
    return rounds


def run(shape: Shape) -> list[dict[str, Effort]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    target = context.Process(target=run_target, args=(shape, there), daemon=True)
    target.start()
    settle(SOURCE_CORE)
    try:
        return uvloop.run(measure(shape, here))
    finally:
        target.terminate()
        target.join()


# ── the report ──


def table(shape: Shape, rounds: list[dict[str, Effort]]) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    gigabytes, warm = shape.total_bytes / 1e9, rounds[1:]
    for kind in KINDS:
        speeds = [gigabytes / each[kind].wall_s for each in warm]
        rows.append(
            {
                "kind": kind,
                "gb_s": statistics.median(speeds),
                "gb_s_min": min(speeds),
                "gb_s_max": max(speeds),
                "gb_s_first": gigabytes / rounds[0][kind].wall_s,
                "of_raw": statistics.median(each["raw TCP"].wall_s / each[kind].wall_s for each in warm),
                "source_cpu_s_gb": statistics.median(each[kind].source_cpu_s for each in warm) / gigabytes,
                "target_cpu_s_gb": statistics.median(each[kind].target_cpu_s for each in warm) / gigabytes,
                "target_rss_mib": max(each[kind].target_rss_mib for each in warm),
            }
        )
    return rows


def show(shape: Shape, rows: list[dict[str, float | str]]) -> None:
    step = blocks_per_frame(shape.block_bytes)
    print(
        f"{shape.blocks} blocks of {shape.block_bytes >> 10} KiB, {step} a frame, {shape.total_bytes >> 20} MiB a push, "
        f"{shape.rounds} rounds; load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':10}{'GB/s':>7}{'min':>7}{'max':>7}{'first':>7}{'of raw':>8}{'CPU s/GB: source':>18}{'target':>8}{'peak MiB':>10}")
    for row in rows:
        print(
            f"{row['kind']:10}{row['gb_s']:7.2f}{row['gb_s_min']:7.2f}{row['gb_s_max']:7.2f}{row['gb_s_first']:7.2f}"
            f"{row['of_raw']:8.0%}{row['source_cpu_s_gb']:18.3f}{row['target_cpu_s_gb']:8.3f}{row['target_rss_mib']:10}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-kib", type=int, default=256)
    parser.add_argument("--mib", type=int, default=512, help="bytes of a push")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    shape = Shape(options.block_kib << 10, (options.mib << 10) // options.block_kib, options.rounds)
    rounds = run(shape)
    rows = table(shape, rounds)
    show(shape, rows)
    RESULTS.mkdir(exist_ok=True)
    record = {
        "shape": asdict(shape),
        "load": os.getloadavg(),
        "machine": platform.processor() or platform.machine(),
        "rows": rows,
        "rounds": [{kind: asdict(effort) for kind, effort in each.items()} for each in rounds],
    }
    (RESULTS / "kv.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
