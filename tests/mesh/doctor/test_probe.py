"""The probe of a line over real sockets: what it measures, and what it may not do to whoever serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from pdd.catalog.base import Role
from pdd.doctor.facts import Goodput, Unmeasured
from pdd.doctor.instances import PROBE_GRACE_S, probe
from pdd.rpc.channel import open_channel
from pdd.rpc.server import serve
from pdd.v1 import diagnostics_pb2
from pdd.v1.diagnostics_pb2_grpc import DiagnosticsStub
from services.diagnostics import PROBE_BYTES
from tests.mesh.doctor.deployment import registering, served_instance
from wan.link import LinkSettings
from wan.relay import Relay

CHUNK = diagnostics_pb2.ProbeChunk(padding=bytes(64 << 10), duration_ms=2000)


@pytest.fixture
async def main_address() -> AsyncIterator[str]:
    async with served_instance(Role.MAIN) as served, serve("127.0.0.1:0", registering(served)) as server:
        yield server.address


@asynccontextmanager
async def behind(address: str, settings: LinkSettings) -> AsyncIterator[tuple[Relay, str]]:
    async with Relay(settings, "127.0.0.1", Random(1)) as relay:
        yield relay, await relay.lease("main-0", address)


async def test_a_probe_measures_the_line_and_not_the_machine(main_address: str) -> None:
    async with behind(main_address, LinkSettings(rate_mbit=20.0, rtt_ms=20.0)) as (_, address):
        measured = await probe(address, 1.0)
    assert isinstance(measured, Goodput)
    assert 10 < measured.mbit < 40


async def test_a_probe_sends_no_more_than_its_bound(main_address: str) -> None:
    measured = await probe(main_address, 2.0)
    assert isinstance(measured, Goodput)
    assert 0 < measured.arrived_bytes <= PROBE_BYTES


async def test_a_probe_is_refused_while_another_runs_and_taken_when_that_has_ended(main_address: str) -> None:
    async with open_channel(main_address) as channel:
        first = DiagnosticsStub(channel).Probe()
        await first.write(CHUNK)
        while isinstance(refused := await probe(main_address, 0.05), Goodput):
            pass  # the first one has not begun there yet
        assert "another probe runs" in refused.why
        await first.done_writing()
        await first
    assert isinstance(await probe(main_address, 0.05), Goodput)


async def test_a_probe_whose_sender_falls_silent_ends_by_itself(main_address: str) -> None:
    async with open_channel(main_address) as channel, asyncio.timeout(20):
        call = DiagnosticsStub(channel).Probe()
        await call.write(CHUNK)
        await call.write(CHUNK)
        reply = await call
    assert sum(reply.slot_bytes) == len(CHUNK.padding)


async def test_a_probe_whose_sender_is_gone_makes_room_for_the_next(main_address: str) -> None:
    async with open_channel(main_address) as channel:
        call = DiagnosticsStub(channel).Probe()
        await call.write(CHUNK)
        call.cancel()
    async with asyncio.timeout(20):
        while not isinstance(await probe(main_address, 0.05), Goodput):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_line_that_swallows_everything_is_unmeasured_in_time(main_address: str) -> None:
    async with behind(main_address, LinkSettings(rate_mbit=0.001)) as (_, address):
        async with asyncio.timeout(5 * PROBE_GRACE_S):
            assert isinstance(await probe(address, 0.2), Unmeasured)


async def test_a_main_reports_who_it_is_and_that_it_keeps_a_cache(main_address: str) -> None:
    async with open_channel(main_address) as channel:
        reply = await DiagnosticsStub(channel).Report(diagnostics_pb2.ReportRequest(), timeout=5.0)
    assert (reply.instance.id, reply.role) == ("main-0", "main")
    assert reply.HasField("cache")
