import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pdd.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from pdd.rpc.errors import ListenError
from pdd.rpc.server import RunningServer, serve, shared_port, split_address
from pdd.v1 import kv_pb2

ANY = "127.0.0.1:0"
KV_TRANSFER = kv_pb2.DESCRIPTOR.services_by_name["KvTransfer"].full_name
STATUS = health_pb2.HealthCheckResponse

Context = grpc.aio.ServicerContext[bytes, bytes]


def byte_service(server: grpc.aio.Server) -> list[str]:
    """Echo answers what it got; Peer says where a call comes from; Hang answers once and stays."""

    async def echo(request: bytes, _: Context) -> bytes:
        return request

    async def peer(_: bytes, context: Context) -> bytes:
        return context.peer().encode()

    async def hang(_: bytes, context: Context) -> None:
        await context.write(b"here")
        await asyncio.Event().wait()

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Peer": grpc.unary_unary_rpc_method_handler(peer),
        "Hang": grpc.unary_stream_rpc_method_handler(hang),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Bytes", handlers),))
    return [KV_TRANSFER]


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with serve(ANY, byte_service) as running:
        yield running


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(server.address) as opened:
        yield opened


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"") -> bytes:
    remote: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/test.Bytes/{method}")
    return await remote(request, timeout=10)


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    answer = await health_stub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return int(answer.status)


def health_stub(channel: grpc.aio.Channel) -> Any:  # its type stubs don't know asyncio
    return health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize("service", ["", KV_TRANSFER])
async def test_health_check_answers_for_the_server_and_its_services(channel: grpc.aio.Channel, service: str) -> None:
    assert await health_of(channel, service) == STATUS.SERVING


async def test_health_check_does_not_know_other_services(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await health_of(channel, "pdd.v1.Nothing")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_follows_set_serving(server: RunningServer, channel: grpc.aio.Channel) -> None:
    await server.set_serving(KV_TRANSFER, False)
    assert await health_of(channel, KV_TRANSFER) == STATUS.NOT_SERVING
    await server.set_serving(KV_TRANSFER, True)
    assert await health_of(channel, KV_TRANSFER) == STATUS.SERVING


async def reflect(
    channel: grpc.aio.Channel, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast(grpc.Channel, channel))
    stream = stub.ServerReflectionInfo(iter([request]), timeout=10)
    answer: reflection_pb2.ServerReflectionResponse = await stream.read()
    return answer


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    answer = await reflect(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
    assert names == {KV_TRANSFER, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_reflection_describes_a_service(channel: grpc.aio.Channel) -> None:
    answer = await reflect(channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=KV_TRANSFER))
    assert any(b"KvTransfer" in file for file in answer.file_descriptor_response.file_descriptor_proto)


async def test_message_above_the_stock_limit_passes(channel: grpc.aio.Channel) -> None:
    message = bytes(MAX_MESSAGE_BYTES - 1024)
    assert await call(channel, "Echo", message) == message


async def test_message_above_our_limit_is_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(channel, "Echo", bytes(MAX_MESSAGE_BYTES + 1))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_channels_to_one_peer_do_not_share_a_connection(server: RunningServer) -> None:
    async with open_channel(server.address) as one, open_channel(server.address) as other:
        assert await call(one, "Peer") == await call(one, "Peer")
        assert await call(one, "Peer") != await call(other, "Peer")


async def test_taken_address_is_an_error_that_names_it(server: RunningServer) -> None:
    with pytest.raises(ListenError, match=rf"{server.address}.*in use"):
        async with serve(server.address, byte_service):
            pass


async def test_servers_that_share_a_port_both_take_connections() -> None:
    def saying(word: bytes) -> Callable[[grpc.aio.Server], list[str]]:
        async def who(_request: bytes, _context: Context) -> bytes:
            return word

        def register(server: grpc.aio.Server) -> list[str]:
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Who": grpc.unary_unary_rpc_method_handler(who)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Bytes", handlers),))
            return []

        return register

    with shared_port(ANY) as address:
        assert not address.endswith(":0")
        async with (
            serve(address, saying(b"one"), shares_port=True) as one,
            serve(address, saying(b"two"), shares_port=True) as two,
        ):
            assert one.address == two.address == address
            heard: set[bytes] = set()
            async with asyncio.timeout(20):
                while len(heard) < 2:
                    async with open_channel(address) as channel:
                        heard.add(await call(channel, "Who"))


async def test_a_port_that_is_served_can_be_neither_shared_nor_taken(server: RunningServer) -> None:
    with pytest.raises(ListenError, match=rf"{server.address}.*in use"), shared_port(server.address):
        pass
    with shared_port(ANY) as address:
        async with serve(address, byte_service, shares_port=True):
            with pytest.raises(ListenError, match="in use"), shared_port(address):
                pass
            with pytest.raises(ListenError, match="in use"):
                async with serve(address, byte_service):
                    pass


async def test_stopping_ends_running_calls() -> None:
    async with AsyncExitStack() as server_life:
        running = await server_life.enter_async_context(serve(ANY, byte_service))
        async with open_channel(running.address) as channel:
            hang: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/test.Bytes/Hang")
            hanging = hang(b"", timeout=60)
            assert await hanging.read() == b"here"
            await server_life.aclose()
            with pytest.raises(grpc.aio.AioRpcError):
                await hanging.read()


async def test_stopping_is_seen_by_health_watchers() -> None:
    async with AsyncExitStack() as server_life:
        running = await server_life.enter_async_context(serve(ANY, byte_service))
        async with open_channel(running.address) as channel:
            watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest(service=KV_TRANSFER), timeout=10)
            assert (await watch.read()).status == STATUS.SERVING
            await server_life.aclose()
            assert (await watch.read()).status == STATUS.NOT_SERVING


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:port", "host:65536", "host:-1", "host:²"])
def test_bad_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ListenError, match="host:port"):
        split_address(address)


def test_ipv6_address_keeps_its_brackets() -> None:
    assert split_address("[::1]:80") == ("[::1]", 80)
