"""gRPC over the relay: what the mesh's streams live through."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from random import Random

import grpc.aio
import pytest

from pdd.rpc.channel import open_channel
from pdd.rpc.server import RunningServer, serve
from tests.eventually import eventually
from tests.mesh.wan.peers import HOST
from tests.support.process import running_module
from wan.client import WanUnavailable, lease_forward
from wan.control import serve_control
from wan.link import LinkSettings, Outage
from wan.relay import Relay

Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def echo_service(server: grpc.aio.Server) -> list[str]:
    async def echo(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(message := await context.read(), bytes):
            await context.write(message)

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Stream", handlers),))
    return []


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with serve(f"{HOST}:0", echo_service) as running:
        yield running


def open_stream(channel: grpc.aio.Channel) -> Stream:
    call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test.Stream/Echo")
    return call(timeout=30)


async def exchange(stream: Stream, message: bytes) -> bytes:
    await stream.write(message)
    answer = await stream.read()
    assert isinstance(answer, bytes)
    return answer


async def first_answer(channel: grpc.aio.Channel) -> bytes:
    """Open streams until one works: the channel may still be on a connection that is about to break."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await exchange(open_stream(channel), b"back")
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)


async def test_stream_crosses_a_bad_line_whole_and_in_order(relay: Relay, server: RunningServer) -> None:
    await relay.configure(LinkSettings(rate_mbit=200, rtt_ms=4, jitter_ms=2, loss=0.01))
    random = Random(1)
    messages = [random.randbytes(random.randrange(100_000)) for _ in range(40)]
    async with open_channel(await relay.lease("main-0", server.address)) as channel:
        stream = open_stream(channel)

        async def send() -> None:
            for message in messages:
                await stream.write(message)
            await stream.done_writing()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for message in messages:
                assert await stream.read() == message
        assert await stream.read() is grpc.aio.EOF
    counters = relay.counters()
    sent = sum(len(message) for message in messages)
    assert sent < counters.a_to_b_bytes < sent * 1.05
    assert sent < counters.b_to_a_bytes < sent * 1.05


async def test_channels_over_one_forward_are_connections_of_their_own(relay: Relay, server: RunningServer) -> None:
    address = await relay.lease("main-0", server.address)
    async with open_channel(address) as tokens, open_channel(address) as kv:
        await exchange(open_stream(tokens), b"token")
        await exchange(open_stream(kv), bytes(100_000))
        small, large = sorted(connection.a_to_b_bytes for connection in relay.counters().forwards[0].connections)
    assert small < 10_000
    assert large > 100_000


async def test_reset_line_ends_the_stream_with_unavailable(relay: Relay, server: RunningServer) -> None:
    async with open_channel(await relay.lease("main-0", server.address)) as channel:
        stream = open_stream(channel)
        await exchange(stream, b"x")
        await relay.configure(LinkSettings(outage=Outage.RESET))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_channel_comes_back_after_an_outage(relay: Relay, server: RunningServer) -> None:
    async with open_channel(await relay.lease("main-0", server.address)) as channel:
        await exchange(open_stream(channel), b"x")
        await relay.configure(LinkSettings(outage=Outage.RESET))
        await eventually(lambda: not any(c.open for c in relay.counters().forwards[0].connections))
        await relay.configure(LinkSettings())
        assert await first_answer(channel) == b"back"


async def test_black_hole_delays_the_stream_and_loses_nothing(relay: Relay, server: RunningServer) -> None:
    async with open_channel(await relay.lease("main-0", server.address)) as channel:
        stream = open_stream(channel)
        await exchange(stream, b"x")
        await relay.configure(LinkSettings(outage=Outage.BLACK_HOLE))
        await stream.write(b"held")
        answer = asyncio.create_task(stream.read())
        await relay.configure(LinkSettings())
        assert await answer == b"held"


async def test_forward_is_leased_over_the_control_api(relay: Relay, server: RunningServer) -> None:
    async with serve_control(relay, f"{HOST}:0") as control:
        address = await lease_forward(f"http://{control}", "main-0", server.address)
        assert await lease_forward(f"http://{control}/", "main-0", server.address) == address
        async with open_channel(address) as channel:
            assert await exchange(open_stream(channel), b"x") == b"x"
        with pytest.raises(WanUnavailable, match="target"):
            await lease_forward(f"http://{control}", "main-1", "nowhere")


async def test_relay_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(WanUnavailable, match=r"http://127\.0\.0\.1:1 "):
        await lease_forward("http://127.0.0.1:1", "main-0", "127.0.0.1:9", patience_s=0.0)


ENVIRONMENT = {"PDD_WAN_CONTROL_LISTEN": f"{HOST}:0", "PDD_WAN_RTT_MS": "2"}


@pytest.mark.processes
class TestProcess:
    async def test_killed_relay_ends_the_stream_with_an_error(self, server: RunningServer) -> None:
        async with running_module("wan", ENVIRONMENT) as process:
            control = _control_of(await process.until("WAN relay is up"))
            async with open_channel(await lease_forward(control, "main-0", server.address)) as channel:
                stream = open_stream(channel)
                await exchange(stream, b"x")
                process.signal(signal.SIGKILL)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stream.read()
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE

    async def test_terminated_relay_ends_in_good_order(self, server: RunningServer) -> None:
        async with running_module("wan", ENVIRONMENT) as process:
            control = _control_of(await process.until("WAN relay is up"))
            async with open_channel(await lease_forward(control, "main-0", server.address)) as channel:
                stream = open_stream(channel)
                await exchange(stream, b"x")
                process.signal(signal.SIGTERM)
                code, said = await process.end()
                assert (code, "Traceback" in said) == (0, False)
                with pytest.raises(grpc.aio.AioRpcError):
                    await stream.read()

    async def test_taken_control_port_is_one_line_that_names_it(self, server: RunningServer) -> None:
        async with running_module("wan", {"PDD_WAN_CONTROL_LISTEN": server.address}) as process:
            code, said = await process.end()
        assert code == 1
        assert said.count("\n") == 1
        assert server.address.rpartition(":")[2] in said


def _control_of(line: str) -> str:
    """The control API's URL, from the relay's first log line."""
    address: str = json.loads(line)["control"]
    return f"http://{address}"
