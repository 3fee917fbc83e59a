"""Asks instances: a report, a probe of the line to it, its cache beside the catalog's. Called by `collect`.

Every call has a deadline, and a peer that fails one is a fact, never an error. Each question opens a channel of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from pdd.catalog.base import Registration
from pdd.catalog.prefixes import PrefixCatalog, digest
from pdd.doctor.facts import CacheLook, Goodput, Report, Silence, Unmeasured, Unreached
from pdd.doctor.goodput import goodput
from pdd.identity import Instance
from pdd.kv.layout import KvLayout
from pdd.rpc.channel import ChannelOptions, open_channel
from pdd.rpc.errors import ListenError
from pdd.rpc.server import split_address
from pdd.v1 import diagnostics_pb2
from pdd.v1.diagnostics_pb2_grpc import DiagnosticsStub

if TYPE_CHECKING:
    from pdd.v1.diagnostics_pb2_grpc import DiagnosticsAsyncStub

ASK_TIMEOUT_S = 3.0  # to connect and for all round trips
ROUND_TRIPS = 3  # of which the shortest counts; the first one connects
CACHE_LOOKS = 6
CACHE_PAUSE_S = 0.4
CACHE_TIMEOUT_S = 5.0  # for all looks
PROBE_GRACE_S = 1.5  # beyond its time, to connect and for the answer
PROBE_BYTES = 16 << 20
CHUNK_BYTES = 32 << 10
# A line that swallows everything keeps what was sent to it. gRPC closes no connection while it writes, nor does the process end:
# this is how long the kernel goes on.
_PROBE_OPTIONS: ChannelOptions = (("grpc.keepalive_timeout_ms", 3000),)


async def ask(registration: Registration, wall_clock_s: Callable[[], float]) -> Report | Unreached:
    """What answers at the address it has registered, whoever that is."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            await _connect(registration.address)
            async with open_channel(registration.address) as channel:
                stub = DiagnosticsStub(channel)
                trips = [await _round_trip(stub, wall_clock_s) for _ in range(ROUND_TRIPS)]
    except TimeoutError:
        return Unreached(Silence.NO_ANSWER, f"no answer in {ASK_TIMEOUT_S:g} s")
    except (OSError, ListenError) as error:
        return Unreached(Silence.NOBODY, str(error))
    except grpc.aio.AioRpcError as error:
        kind = Silence.NO_DIAGNOSTICS if error.code() is grpc.StatusCode.UNIMPLEMENTED else Silence.NO_ANSWER
        return Unreached(kind, _words(error))
    return min(trips, key=lambda report: report.round_trip_s)


async def probe(address: str, duration_s: float) -> Goodput | Unmeasured:
    """Send bytes for so long, or 16 MiB, and be told when they came."""
    chunk = diagnostics_pb2.ProbeChunk(padding=bytes(CHUNK_BYTES), duration_ms=round(duration_s * 1000))

    async def chunks() -> AsyncIterator[diagnostics_pb2.ProbeChunk]:
        for _ in range(PROBE_BYTES // CHUNK_BYTES):
            yield chunk

    try:
        async with open_channel(address, _PROBE_OPTIONS) as channel:
            reply = await DiagnosticsStub(channel).Probe(chunks(), timeout=duration_s + PROBE_GRACE_S)
    except grpc.aio.AioRpcError as error:
        return Unmeasured(_words(error))
    return goodput(reply.slot_us, reply.slot_bytes)


async def look_at_cache(registration: Registration, catalog: PrefixCatalog) -> tuple[CacheLook, ...]:
    """The catalog and the instance side by side, until they agree or for long enough. Empty where it can't be asked.

    Raises RegistryUnavailable.
    """
    looks: list[CacheLook] = []
    try:
        async with asyncio.timeout(CACHE_TIMEOUT_S), open_channel(registration.address) as channel:
            while len(looks) < CACHE_LOOKS and not (looks and looks[-1].agrees):
                if looks:
                    await asyncio.sleep(CACHE_PAUSE_S)
                looks.append(await _cache_look(registration.instance, catalog, DiagnosticsStub(channel)))
    except (TimeoutError, grpc.aio.AioRpcError):
        return ()
    return tuple(looks)


async def _cache_look(instance: Instance, catalog: PrefixCatalog, stub: DiagnosticsAsyncStub) -> CacheLook:
    snapshot = await catalog.snapshot(instance)
    reply = await stub.Report(diagnostics_pb2.ReportRequest(), timeout=ASK_TIMEOUT_S)
    held = reply.cache.count, reply.cache.digest
    if snapshot is None:
        return CacheLook(None, (0, 0), held)
    return CacheLook(snapshot.state, (len(snapshot.hashes), digest(snapshot.hashes)), held)


async def _round_trip(stub: DiagnosticsAsyncStub, wall_clock_s: Callable[[], float]) -> Report:
    now_s = asyncio.get_running_loop().time
    sent_s, sent_at_s = now_s(), wall_clock_s()
    reply = await stub.Report(diagnostics_pb2.ReportRequest(), timeout=ASK_TIMEOUT_S)
    round_trip_s = now_s() - sent_s
    return Report(
        instance=Instance.from_proto(reply.instance),
        role=reply.role,
        layout=KvLayout.from_proto(reply.layout),
        running=reply.load.running,
        waiting=reply.load.waiting,
        slots=reply.load.slots,
        round_trip_s=round_trip_s,
        clock_offset_s=reply.wall_clock_us / 1e6 - (sent_at_s + round_trip_s / 2),
    )


async def _connect(address: str) -> None:
    """Connect and let go: gRPC tells "refused" from "silent" only in words. Raises OSError, and ListenError for no address."""
    host, port = split_address(address)
    _, writer = await asyncio.open_connection(host.strip("[]"), port)
    writer.close()


def _words(error: grpc.aio.AioRpcError) -> str:
    """gRPC's details end with the cause."""
    details = error.details() or ""
    return f"{error.code().name}: {details.rpartition('last error: ')[2]}"
