"""How fast KV travels: a push through the real sender and receiver, beside a raw TCP stream of the same chunks.

    python -m bench.kv                        blocks of 1 MiB, and those of SmolLM2-135M
    python -m bench.kv --block-kib 256        blocks of another size
    python -m bench.kv --realtime             before everything else on the two cores; needs root, and lasts seconds
    unshare --net sh -c 'ip link set lo up; sysctl -qw net.ipv4.tcp_congestion_control=reno; exec python -m bench.kv'

Two processes, one core each. A round measures three ways one after the other, over the same two processes:

    raw TCP     uvloop; chunks written as the transport takes them, read into one buffer (BufferedProtocol) and dropped
    bare gRPC   the same chunks as messages of a bare stream of bytes, read and dropped: what a transfer over grpc.aio could reach
    KV push     offer, want, frames under credit, commit: each block's checksum made and verified, each block held in the
                BlockStore until the commit, as a decoder holds it

A push is timed from the offer to Committed, a stream from the first write to the last byte's acknowledgement. "of raw" compares
within a round, so that what else the machine does weighs on both alike. It can't all the same: a busy machine makes the raw
stream, which sleeps and wakes with every buffer, wait longer than gRPC's many threads. CPU seconds of the busier side are the
bound on an idle machine, and are disturbed little. The first round touches memory for the first time, and is shown apart.

Where TCP's default is BBR, one run's figures can be twice those of the next: over loopback it sees a round trip of 3 µs, and
keeps a connection at a window of a dozen packets once its receiver was slow. gRPC's sockets take no other algorithm than the
default; a network namespace has a default of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import uvloop

from bench.kv_ends import PUSH, RAW, WAYS, Place, Shape, TargetReport, run_target, source
from bench.report import RESULTS, print_table, write_json
from pdd.kv.wire import blocks_per_frame

BLOCK_KIB = (1024, 360)  # one a message; two, as with SmolLM2-135M: 16 tokens of 23,040 bytes
TARGET_OF_RAW = 0.65
DEADLINE_S = 60.0  # for one push


@dataclass(frozen=True)
class Effort:
    """One way, measured once."""

    wall_s: float
    source_cpu_s: float
    target: TargetReport

    @property
    def busier_cpu_s(self) -> float:
        return max(self.source_cpu_s, self.target.cpu_s)


Round = dict[str, Effort]  # by way


@dataclass(frozen=True)
class Row:
    """One way over all rounds but the first: medians, but for the extremes. Rates in GB/s, CPU in seconds a GB."""

    way: str
    rate: float
    rate_min: float
    rate_max: float
    rate_first: float  # in the first round
    of_raw: float
    of_raw_min: float
    of_raw_max: float
    source_cpu: float
    target_cpu: float
    cpu_of_raw: float  # the raw stream's busier side by this one's
    peak_mib: int  # of the target


# ── measuring ──


def run(shape: Shape, target: Place, here: Place) -> list[Round]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_target, args=(shape, target, theirs), daemon=True)
    process.start()
    here.settle()
    try:
        return uvloop.run(_measure(shape, ours))
    finally:
        process.terminate()
        process.join()


async def _measure(shape: Shape, target: Connection) -> list[Round]:
    rounds: list[Round] = []
    async with source(shape, target.recv()) as from_here:
        for number in range(shape.rounds + 1):
            rounds.append({})
            for way in WAYS:
                cpu_s, start_s = time.process_time(), time.perf_counter()
                async with asyncio.timeout(DEADLINE_S):
                    await from_here.push(way, number)
                wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
                rounds[-1][way] = Effort(wall_s, cpu_s, target.recv())
    return rounds


# ── the report ──


def congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def row(way: str, shape: Shape, rounds: Sequence[Round]) -> Row:
    gigabytes, (first, *warm) = shape.total_bytes / 1e9, rounds
    rates = [gigabytes / each[way].wall_s for each in warm]
    of_raw = [each[RAW].wall_s / each[way].wall_s for each in warm]
    return Row(
        way=way,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        rate_first=gigabytes / first[way].wall_s,
        of_raw=statistics.median(of_raw),
        of_raw_min=min(of_raw),
        of_raw_max=max(of_raw),
        source_cpu=statistics.median(each[way].source_cpu_s for each in warm) / gigabytes,
        target_cpu=statistics.median(each[way].target.cpu_s for each in warm) / gigabytes,
        cpu_of_raw=statistics.median(each[RAW].busier_cpu_s / each[way].busier_cpu_s for each in warm),
        peak_mib=max(each[way].target.peak_mib for each in warm),
    )


def show(shape: Shape, rows: Sequence[Row]) -> None:
    print(
        f"\n{shape.blocks} blocks of {shape.block_bytes >> 10} KiB, {blocks_per_frame(shape.block_bytes)} a message, "
        f"{shape.total_bytes >> 20} MiB a push, {shape.rounds} rounds; load {os.getloadavg()[0]:.1f}, TCP {congestion_control()}"
    )
    head = ("", "GB/s", "range", "first", "of raw", "range", "CPU s/GB: source", "target", "of raw", "peak MiB")
    print_table(head, [_cells(each) for each in rows])
    of_raw = next(each.of_raw for each in rows if each.way == PUSH)
    print(f"target: {TARGET_OF_RAW:.0%} of raw TCP; {'met' if of_raw >= TARGET_OF_RAW else 'missed'} with {of_raw:.0%}")


def _cells(each: Row) -> tuple[str, ...]:
    return (
        each.way,
        f"{each.rate:.2f}",
        f"{each.rate_min:.2f}–{each.rate_max:.2f}",
        f"{each.rate_first:.2f}",
        f"{each.of_raw:.0%}",
        f"{each.of_raw_min:.0%}–{each.of_raw_max:.0%}",
        f"{each.source_cpu:.3f}",
        f"{each.target_cpu:.3f}",
        f"{each.cpu_of_raw:.0%}",
        f"{each.peak_mib}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-kib", type=int, nargs="+", default=BLOCK_KIB)
    parser.add_argument("--mib", type=int, default=256, help="size of a push")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), metavar=("TARGET", "SOURCE"))
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    target, here = (Place(core, options.realtime) for core in options.cores)
    measured = []
    for kib in options.block_kib:
        shape = Shape(kib << 10, (options.mib << 10) // kib, options.rounds)
        rounds = run(shape, target, here)
        rows = [row(way, shape, rounds) for way in WAYS]
        show(shape, rows)
        measured.append({"shape": asdict(shape), "rows": [asdict(each) for each in rows]})
    about = {
        "grpcio": grpc.__version__,
        "congestion_control": congestion_control(),
        "realtime": options.realtime,
        "load_average": os.getloadavg()[0],
    }
    write_json(RESULTS / "kv.json", {**about, "measured": measured})


if __name__ == "__main__":
    main()
