"""The project's own servicers, and gRPC's, unchanged over the network in memory and in virtual time."""

import asyncio
import itertools
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from pdd.decode.decoder import Decoder
from pdd.decode.servicer import add_decoder
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from pdd.rpc.attach import PROTOCOL
from pdd.transfer.base import Refusal, TransferLost
from pdd.transfer.feed import BlockFeed
from pdd.transfer.messages import SERVICE, add_push
from pdd.transfer.receiver import Receiver
from pdd.transfer.sender import send
from pdd.v1 import decode_pb2, decode_pb2_grpc, identity_pb2, prefill_pb2, prefill_pb2_grpc
from services.instances import prefill_instance
from services.main.rules import main_rules
from tests.mesh.services.gateways import HELLO, PrefillStream
from tests.mesh.services.instances import greedy
from tests.mesh.services.instances import prompt as integer_prompt
from tests.unit.transfer.parts import FIRST_TOKEN, PREFILL, REQUEST, SALT, Heard, layout, offered, payloads, prompt
from virtual.clock import VirtualLoop
from virtual.network import Host, Network
from wan.link import LinkSettings, Outage

MEBIBYTE = 1 << 20
BLOCKS = 64
ADDRESS = "main:1"
PREFILL_ADDRESS = "prefill:1"


@pytest.fixture
async def prefill(network: Network) -> Host:
    network.configure("a", "b", LinkSettings(rate_mbit=4000.0, rtt_ms=40.0))
    return network.host("prefill", "a")


@pytest.fixture
async def main(network: Network) -> Host:
    return network.host("main", "b")


async def start(host: Host, register: Any, address: str = ADDRESS) -> grpc.aio.Server:
    server = host.new_server()
    register(server)
    server.add_insecure_port(address)
    await server.start()
    return server


async def test_kv_crosses_at_the_rate_of_the_link(network: Network, prefill: Host, main: Host, loop: VirtualLoop) -> None:
    store, heard, feed = BlockStore(2 * BLOCKS * MEBIBYTE), Heard(), BlockFeed()
    async with Receiver(layout(MEBIBYTE), store) as receiver, prefill.open_channel(ADDRESS) as channel:
        await start(main, lambda server: add_push(server, receiver.push))
        receiver.admit(REQUEST, prompt(BLOCKS), SALT, 60.0, heard)
        feed.append(payloads(BLOCKS, MEBIBYTE))
        feed.complete(FIRST_TOKEN, final=False)
        report = await send(channel, offered(BLOCKS, MEBIBYTE), feed, on_wanted=lambda *_: None, lease_s=60.0)
    assert report.bytes == BLOCKS * MEBIBYTE
    assert len(heard.received) == 1
    # Connecting takes two round trips, the offer and the commit one each; the credit is more than the link holds.
    assert loop.time() == pytest.approx(4 * 0.04 + report.bytes / 500e6, rel=0.01)
    assert network.crossed("a", "b")["PushRequest.frame"].link_bytes >= report.bytes


async def test_a_transfer_through_a_reset_is_lost_at_both_ends(network: Network, prefill: Host, main: Host) -> None:
    store, heard, feed = BlockStore(2 * BLOCKS * MEBIBYTE), Heard(), BlockFeed()
    async with Receiver(layout(MEBIBYTE), store) as receiver, prefill.open_channel(ADDRESS) as channel:
        await start(main, lambda server: add_push(server, receiver.push))
        receiver.admit(REQUEST, prompt(BLOCKS), SALT, 60.0, heard)
        feed.append(payloads(BLOCKS, MEBIBYTE)[:10])
        sending = asyncio.create_task(send(channel, offered(BLOCKS, MEBIBYTE), feed, on_wanted=lambda *_: None, lease_s=60.0))
        await asyncio.sleep(1)
        network.configure("a", "b", LinkSettings(outage=Outage.RESET))
        with pytest.raises(TransferLost, match="UNAVAILABLE"):
            await sending
        await asyncio.sleep(0)
        assert heard.reasons == [None]
        assert store.used_bytes == 0


LEASE_S = 2.0


async def test_a_transfer_that_moves_outlives_its_lease(network: Network, prefill: Host, main: Host, loop: VirtualLoop) -> None:
    network.configure("a", "b", LinkSettings(rate_mbit=50.0, rtt_ms=40.0))
    store, heard, feed, moved = BlockStore(BLOCKS * MEBIBYTE), Heard(), BlockFeed(), list[float]()
    async with Receiver(layout(MEBIBYTE), store) as receiver, prefill.open_channel(ADDRESS) as channel:
        await start(main, lambda server: add_push(server, receiver.push))
        receiver.admit(REQUEST, prompt(BLOCKS), SALT, LEASE_S, heard)
        feed.append(payloads(BLOCKS, MEBIBYTE))
        feed.complete(FIRST_TOKEN, final=False)
        offer = offered(BLOCKS, MEBIBYTE)
        await send(
            channel, offer, feed, on_wanted=lambda *_: None, on_progress=lambda: moved.append(loop.time()), lease_s=LEASE_S
        )
        assert len(heard.received) == 1
    assert loop.time() > 5 * LEASE_S
    assert max(after - before for before, after in itertools.pairwise(moved)) < LEASE_S


async def test_prefill_keeps_a_job_whose_transfer_moves(network: Network, prefill: Host, main: Host, loop: VirtualLoop) -> None:
    network.configure("a", "b", LinkSettings(rate_mbit=20.0, rtt_ms=40.0))
    ids, heard = integer_prompt(600), Heard()
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        store = BlockStore(64 * MEBIBYTE)
        async with (
            Receiver(engine.layout, store) as receiver,
            prefill_instance(PREFILL, engine, 64 * MEBIBYTE, prefill.open_channel) as served,
        ):
            await start(main, lambda server: add_push(server, receiver.push))
            await start(prefill, served.register, PREFILL_ADDRESS)
            receiver.admit(REQUEST, tuple(ids), "", LEASE_S, heard)
            async with network.host("gateway", "a").open_channel(PREFILL_ADDRESS) as channel:
                stream = PrefillStream(prefill_pb2_grpc.PrefillStub(channel).Attach())
                reading = asyncio.create_task(stream.read_all())
                await stream.send(prefill_pb2.PrefillCommand(hello=HELLO))
                target = (Instance("main-0", 7), ADDRESS)
                await stream.start(1, REQUEST, ids, greedy(9), [target], lease_ms=round(LEASE_S * 1000))
                assert await stream.until_released(1) == ["first_token", "wanted", "transfer_done", "released"]
                served.close()
                await reading
    assert loop.time() > 2 * LEASE_S
    assert len(heard.received) == 1


async def test_a_transfer_that_stands_still_ends_with_its_lease_at_both_ends(
    network: Network, prefill: Host, main: Host, loop: VirtualLoop
) -> None:
    store, heard, feed = BlockStore(BLOCKS * MEBIBYTE), Heard(), BlockFeed()
    async with Receiver(layout(MEBIBYTE), store) as receiver, prefill.open_channel(ADDRESS) as channel:
        await start(main, lambda server: add_push(server, receiver.push))
        receiver.admit(REQUEST, prompt(BLOCKS), SALT, LEASE_S, heard)
        feed.append(payloads(BLOCKS, MEBIBYTE)[:10])
        sending = asyncio.create_task(send(channel, offered(BLOCKS, MEBIBYTE), feed, on_wanted=lambda *_: None, lease_s=LEASE_S))
        await asyncio.sleep(LEASE_S / 2)
        network.configure("a", "b", LinkSettings(outage=Outage.BLACK_HOLE))
        with pytest.raises(TransferLost, match="nothing moved for the lease of 2 s"):
            await sending
        assert LEASE_S <= loop.time() < 2 * LEASE_S
        await asyncio.sleep(LEASE_S)
        assert heard.reasons == [Refusal.LEASE_EXPIRED]
        assert store.used_bytes == 0


async def test_a_decoder_greets_over_its_stream(prefill: Host, main: Host) -> None:
    instance = Instance("main-0", 7)
    hello = identity_pb2.Hello(**{"from": PREFILL.to_proto()}, protocol=PROTOCOL)
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        cache = PrefixCache(BlockStore(MEBIBYTE), engine.layout.block_tokens, 0)
        async with (
            Receiver(engine.layout, cache.store, cache=cache) as receiver,
            Decoder(engine, receiver, instance, main_rules(engine.capabilities), cache) as decoder,
            prefill.open_channel(ADDRESS) as channel,
        ):
            await start(main, lambda server: add_decoder(server, decoder, receiver))
            call = decode_pb2_grpc.DecodeStub(channel).Attach()
            await call.write(decode_pb2.DecodeCommand(hello=hello))
            frame = await call.read()
            assert isinstance(frame, decode_pb2.DecodeFrame)
            assert Instance.from_proto(getattr(frame.hello, "from")) == instance
            await call.write(decode_pb2.DecodeCommand(detach=decode_pb2.Detach()))
            assert await call.read() is grpc.aio.EOF


async def test_health_and_reflection_are_served(prefill: Host, main: Host) -> None:
    servicer = health.aio.HealthServicer()

    def register(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection((SERVICE, reflection.SERVICE_NAME), server)

    await start(main, register)
    channel: Any = prefill.open_channel(ADDRESS)
    health_stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs don't know all of it
    watch = health_stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    states = [(await watch.read()).status]
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    states.append((await watch.read()).status)
    assert states == [health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, health_pb2.HealthCheckResponse.SERVING]
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    answer = await stub.ServerReflectionInfo(iter(asked)).read()
    assert SERVICE in {service.name for service in answer.list_services_response.service}
