"""What an instance tells `pdd doctor` of itself, and the far end of its probe of the line.

Registered by the shell beside the services that carry requests. Reads the instance and changes nothing; a probe is bounded in
time and bytes, and there is one at a time, so that whoever asks can't hold back requests for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import grpc
import grpc.aio

from pdd.catalog.prefixes import digest
from pdd.v1 import decode_pb2, diagnostics_pb2, diagnostics_pb2_grpc
from services.instances import Served

PROBE_S = 2.0
PROBE_BYTES = 16 << 20
SLOT_US = 50_000

SERVICE = diagnostics_pb2.DESCRIPTOR.services_by_name["Diagnostics"].full_name

ReportContext = grpc.aio.ServicerContext[diagnostics_pb2.ReportRequest, diagnostics_pb2.ReportReply]
ProbeContext = grpc.aio.ServicerContext[diagnostics_pb2.ProbeChunk, diagnostics_pb2.ProbeReply]


class DiagnosticsServicer(diagnostics_pb2_grpc.DiagnosticsServicer):
    def __init__(self, served: Served, wall_clock_s: Callable[[], float]) -> None:
        """`wall_clock_s` gives this machine's Unix time."""
        self._served = served
        self._wall_clock_s = wall_clock_s
        self._probing = False

    async def Report(self, request: diagnostics_pb2.ReportRequest, context: ReportContext) -> diagnostics_pb2.ReportReply:
        served = self._served
        return diagnostics_pb2.ReportReply(
            instance=served.instance.to_proto(),
            role=served.role.value,
            layout=served.engine.layout.to_proto(),
            context_tokens=served.engine.capabilities.context_tokens,
            load=_load(served),
            cache=_cache(served),
            wall_clock_us=round(self._wall_clock_s() * 1e6),
        )

    async def Probe(
        self, request_iterator: AsyncIterator[diagnostics_pb2.ProbeChunk], context: ProbeContext
    ) -> diagnostics_pb2.ProbeReply:
        if self._probing:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "another probe runs: try again in a few seconds")
        self._probing = True
        try:
            return diagnostics_pb2.ProbeReply(slot_us=SLOT_US, slot_bytes=await _arrivals(request_iterator))
        finally:
            self._probing = False


def add_diagnostics(server: grpc.aio.Server, served: Served, wall_clock_s: Callable[[], float]) -> Sequence[str]:
    """Add the service to a server and return its full name."""
    diagnostics_pb2_grpc.add_DiagnosticsServicer_to_server(DiagnosticsServicer(served, wall_clock_s), server)
    return (SERVICE,)


async def _arrivals(chunks: AsyncIterator[diagnostics_pb2.ProbeChunk]) -> Sequence[int]:
    """Bytes by slot of time, after the first chunk, until the probe's time is up or enough have come."""
    now_s = asyncio.get_running_loop().time
    slots: list[int] = []
    begun_s, left_bytes = None, PROBE_BYTES
    with suppress(TimeoutError):  # its time is up
        async with asyncio.timeout(PROBE_S) as bound:
            async for chunk in chunks:
                left_bytes -= len(chunk.padding)
                if begun_s is None:
                    begun_s = now_s()
                    bound.reschedule(begun_s + min(PROBE_S, chunk.duration_ms / 1000))
                else:
                    slot = int((now_s() - begun_s) * 1e6 / SLOT_US)
                    slots.extend([0] * (slot + 1 - len(slots)))
                    slots[slot] += len(chunk.padding)
                if left_bytes <= 0:
                    break
    return slots


def _load(served: Served) -> decode_pb2.DecodeLoad:
    load = served.engine.load()
    return decode_pb2.DecodeLoad(
        running=load.running,
        waiting=load.waiting,
        slots=load.slots,
        kv_used=max(load.kv_used, served.store.usage),
        step_us=round(load.step_s * 1e6),
    )


def _cache(served: Served) -> diagnostics_pb2.CacheSummary | None:
    if not served.cache.limit_bytes:
        return None
    hashes = served.cache.hashes()
    return diagnostics_pb2.CacheSummary(count=len(hashes), digest=digest(hashes))
