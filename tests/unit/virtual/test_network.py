"""What the network does to calls: latency, rate, fairness, outages, and what it counts."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from pdd.rpc.channel import KEEPALIVE_S, PING_TIMEOUT_S
from pdd.v1 import kv_pb2, kv_pb2_grpc
from virtual.clock import VirtualLoop
from virtual.network import Host, Network
from wan.link import LinkSettings, Outage

CODE = grpc.StatusCode
MEBIBYTE = 1 << 20
RTT_S = 0.04
WAN = LinkSettings(rtt_ms=RTT_S * 1000)
GIGABYTE_A_SECOND = LinkSettings(rate_mbit=8000.0, rtt_ms=RTT_S * 1000)


async def echo(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    while isinstance(message := await context.read(), bytes):
        await context.write(message)


async def swallow(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    while isinstance(await context.read(), bytes):
        pass


async def hang(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.write(b"here")
    await asyncio.Event().wait()


async def serve(host: Host) -> str:
    server = host.new_server()
    handlers: dict[str, Any] = {
        handler.__name__: grpc.stream_stream_rpc_method_handler(handler) for handler in (echo, swallow, hang)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port(f"{host.name}:0")
    await server.start()
    return f"{host.name}:{port}"


def open_call(channel: grpc.aio.Channel, method: str, **options: Any) -> Any:
    multi: Any = channel.stream_stream(f"/test/{method}")
    return multi(**options)


async def exchange(call: Any, message: bytes = b"m") -> None:
    await call.write(message)
    assert await call.read() == message


@pytest.fixture
async def client(network: Network) -> Host:
    return network.host("client", "a")


@pytest.fixture
async def address(network: Network) -> str:
    return await serve(network.host("server", "b"))


async def test_the_first_call_pays_for_the_connection(network: Network, client: Host, address: str, loop: VirtualLoop) -> None:
    network.configure("a", "b", WAN)
    channel = client.open_channel(address)
    await exchange(open_call(channel, "echo"))
    assert loop.time() == pytest.approx(3 * RTT_S)  # TCP, HTTP/2's settings, and the call
    await exchange(open_call(channel, "echo"))
    assert loop.time() == pytest.approx(4 * RTT_S)


async def test_sites_are_near_themselves(network: Network, client: Host, loop: VirtualLoop) -> None:
    network.configure("a", "b", WAN)
    await exchange(open_call(client.open_channel(await serve(network.host("neighbour", "a"))), "echo"))
    assert loop.time() == 0


async def test_a_message_takes_its_time_on_the_line(network: Network, client: Host, address: str, loop: VirtualLoop) -> None:
    network.configure("a", "b", GIGABYTE_A_SECOND)
    call = open_call(client.open_channel(address), "echo")
    await exchange(call)
    began_s = loop.time()
    await exchange(call, bytes(10_000_000))
    assert loop.time() - began_s == pytest.approx(RTT_S + 2 * 0.01, rel=1e-4)


async def test_a_token_beside_four_streams_of_kv_waits_for_a_turn_of_each(
    network: Network, client: Host, address: str, loop: VirtualLoop
) -> None:
    network.configure("a", "b", GIGABYTE_A_SECOND)
    call = open_call(client.open_channel(address), "echo")
    await exchange(call)

    async def push() -> None:
        bulk = open_call(client.open_channel(address), "swallow")
        while True:
            await bulk.write(bytes(MEBIBYTE))

    pushing = [asyncio.create_task(push()) for _ in range(4)]
    await asyncio.sleep(1)
    waits_s = []
    for _ in range(20):
        began_s = loop.time()
        await exchange(call)
        waits_s.append(loop.time() - began_s - RTT_S)
    assert max(waits_s) < 0.0004
    for task in pushing:
        task.cancel()


async def test_a_link_is_filled_by_one_call(network: Network, client: Host, address: str, loop: VirtualLoop) -> None:
    network.configure("a", "b", GIGABYTE_A_SECOND)
    call = open_call(client.open_channel(address), "swallow")
    await call.wait_for_connection()
    began_s = loop.time()
    for _ in range(1000):
        await call.write(bytes(MEBIBYTE))
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert loop.time() - began_s == pytest.approx(1.05, abs=0.06)


async def test_a_call_that_is_cancelled_frees_the_line(network: Network, client: Host, address: str, loop: VirtualLoop) -> None:
    network.configure("a", "b", LinkSettings(rate_mbit=8.0, rtt_ms=RTT_S * 1000))  # a megabyte a second
    bulk, token = (open_call(client.open_channel(address), "echo") for _ in range(2))
    await exchange(token)
    await bulk.write(bytes(3 * MEBIBYTE))
    began_s = loop.time()
    bulk.cancel()
    await exchange(token)
    assert loop.time() - began_s < 2 * RTT_S


async def test_frames_of_kv_are_charged_what_they_stand_for_and_counted_by_kind(
    network: Network, client: Host, loop: VirtualLoop
) -> None:
    class Push(kv_pb2_grpc.KvTransferServicer):
        async def Push(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
            while await context.read() is not grpc.aio.EOF:
                pass
            await context.write(kv_pb2.PushReply(committed=kv_pb2.Committed()))

    network.configure("a", "b", GIGABYTE_A_SECOND)
    server = network.host("server", "b").new_server()
    kv_pb2_grpc.add_KvTransferServicer_to_server(Push(), server)
    server.add_insecure_port("server:1")
    await server.start()
    call = kv_pb2_grpc.KvTransferStub(client.open_channel("server:1")).Push()
    await call.wait_for_connection()
    began_s = loop.time()
    await call.write(kv_pb2.PushRequest(frame=kv_pb2.Frame(payload=bytes(8), declared_bytes=100_000_000)))
    await call.done_writing()
    reply = await call.read()
    assert isinstance(reply, kv_pb2.PushReply)
    assert loop.time() - began_s == pytest.approx(0.1 + RTT_S, rel=1e-3)
    up, down = network.crossed("a", "b"), network.crossed("b", "a")
    assert up["PushRequest.frame"].messages == 1
    assert up["PushRequest.frame"].serialised_bytes < 100
    assert up["PushRequest.frame"].link_bytes >= 100_000_000
    assert down["PushReply.committed"].messages == 1


async def test_a_receiver_who_does_not_read_holds_up_its_sender(
    network: Network, client: Host, address: str, loop: VirtualLoop
) -> None:
    call = open_call(client.open_channel(address), "hang")
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await call.write(bytes(MEBIBYTE))
            written += 1

    writing = asyncio.create_task(write())
    await asyncio.sleep(60)
    assert 1 <= written <= 8
    writing.cancel()


async def test_a_channel_for_tokens_bounds_what_waits_unread(client: Host, network: Network) -> None:
    written = 0

    async def talk(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        nonlocal written
        while True:
            await context.write(bytes(1024))
            written += 1

    server = network.host("server", "b").new_server()
    handlers: dict[str, Any] = {"talk": grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    server.add_insecure_port("server:1")
    await server.start()
    call = open_call(client.open_token_channel("server:1"), "talk")
    await call.read()
    await asyncio.sleep(60)
    assert 60 <= written <= 70


# Outages.


async def test_silence_ends_connections_at_both_ends(network: Network, client: Host, address: str, loop: VirtualLoop) -> None:
    call = open_call(client.open_channel(address), "hang")
    await call.read()
    began_s = loop.time()
    network.configure("a", "b", LinkSettings(outage=Outage.BLACK_HOLE))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is CODE.UNAVAILABLE
    assert loop.time() - began_s == KEEPALIVE_S + PING_TIMEOUT_S


async def test_a_black_hole_shorter_than_the_silence_ends_nothing(network: Network, client: Host, address: str) -> None:
    call = open_call(client.open_channel(address), "echo")
    await exchange(call)
    for _ in range(3):
        network.configure("a", "b", LinkSettings(outage=Outage.BLACK_HOLE))
        await asyncio.sleep(20)
        network.configure("a", "b", LinkSettings())
        await exchange(call)


async def test_connecting_into_a_black_hole_takes_until_it_times_out(
    network: Network, client: Host, address: str, loop: VirtualLoop
) -> None:
    network.configure("a", "b", LinkSettings(outage=Outage.BLACK_HOLE))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await open_call(client.open_channel(address), "echo").read()
    assert error.value.code() is CODE.UNAVAILABLE
    assert loop.time() == network.transport.connect_timeout_s


async def test_a_crash_ends_the_calls_of_a_host_and_nobody_listens_there(network: Network, client: Host) -> None:
    server, other = network.host("server", "b"), network.host("other", "b")
    channel = client.open_channel(await serve(server))
    call = open_call(channel, "hang")
    spared = open_call(client.open_channel(await serve(other)), "echo")
    await call.read()
    await exchange(spared)
    server.crash()
    for attempt in (call, open_call(channel, "echo")):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await attempt.read()
        assert error.value.code() is CODE.UNAVAILABLE
    await exchange(spared)


async def test_an_address_of_no_host_is_unavailable(client: Host) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="nobody knows the host") as error:
        await open_call(client.open_channel("nobody:1"), "echo").read()
    assert error.value.code() is CODE.UNAVAILABLE


async def test_attempts_to_connect_are_spaced_out(network: Network, client: Host, loop: VirtualLoop) -> None:
    server = network.host("server", "b")
    call = open_call(client.open_channel("server:50051"), "echo", wait_for_ready=True)
    await asyncio.sleep(10)
    attempts = network.crossed("a", "b")["handshake"].messages
    assert 6 <= attempts <= 9  # after 0, 0.2, 0.5, 1.0, 1.9, 3.2 s and then each 2 s
    await serve(server)
    await exchange(call)
    assert loop.time() < 12.1


# Hosts.


async def test_hosts_have_names_of_their_own(network: Network, client: Host) -> None:
    with pytest.raises(ValueError, match="'client' already"):
        network.host("client", "b")


async def test_a_server_listens_on_its_own_host_only(client: Host) -> None:
    with pytest.raises(RuntimeError, match="this is host 'client'"):
        client.new_server().add_insecure_port("server:1")


async def test_there_is_no_encryption(client: Host) -> None:
    credentials = grpc.ssl_server_credentials([(b"key", b"chain")])
    with pytest.raises(RuntimeError, match="no encryption"):
        client.new_server().add_secure_port("client:1", credentials)
