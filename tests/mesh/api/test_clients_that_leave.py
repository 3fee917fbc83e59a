"""Clients that go away or do not read: the mesh hears of it at once, and it counts as their doing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable

import aiohttp
import pytest

from gateway.generation import GenerationSpec
from tests.eventually import eventually
from tests.mesh.api.conftest import CARD, Gateway, Start, stands_still
from tests.unit.gateway_api.scripted import Hold, Step, steps

CHAT = "/v1/chat/completions"
BODY = {"model": "pdd-sim", "messages": [{"role": "user", "content": "hi"}]}
LONG = CARD.encode(" river" * 200)


def two_tokens_then_wait(spec: GenerationSpec) -> list[Step]:
    return [*steps(spec, LONG)[:2], Hold(asyncio.Event())]


async def connect(gateway: Gateway, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    data = json.dumps(body).encode()
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data))
    await writer.drain()
    return reader, writer


async def outcome(gateway: Gateway, status: str) -> None:
    await eventually(lambda: gateway.count("pdd_requests_total", route=CHAT, status=status) > 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_socket_leaves_the_generation(start: Start, stream: bool) -> None:
    async with start(two_tokens_then_wait) as gateway:
        reader, writer = await connect(gateway, BODY | {"stream": stream})
        await gateway.generator.entered.wait()
        if stream:
            assert b"river" in await reader.readuntil(b"river")
        writer.close()
        async with asyncio.timeout(10):
            await gateway.generator.left.wait()
        await outcome(gateway, "499")
        assert gateway.generator.running == 0
        assert gateway.count("pdd_requests_running", route=CHAT) == 0


async def test_leaving_before_the_first_token_leaves_the_generation(start: Start) -> None:
    async with start(lambda _spec: [Hold(asyncio.Event())]) as gateway:
        _, writer = await connect(gateway, BODY | {"stream": True})
        await gateway.generator.entered.wait()
        writer.transport.abort()
        async with asyncio.timeout(10):
            await gateway.generator.left.wait()
        await outcome(gateway, "499")


async def test_closing_an_openai_stream_leaves_the_generation(start: Start) -> None:
    async with start(two_tokens_then_wait) as gateway, gateway.openai() as client:
        stream = await client.chat.completions.create(model="pdd-sim", messages=[{"role": "user", "content": "hi"}], stream=True)
        async for _ in stream:
            break
        await stream.close()
        async with asyncio.timeout(10):
            await gateway.generator.left.wait()


async def test_two_hundred_leavers_do_not_hold_up_the_next(start: Start, http: aiohttp.ClientSession) -> None:
    wait = True

    def script(spec: GenerationSpec) -> list[Step]:
        return two_tokens_then_wait(spec) if wait else steps(spec, LONG[:3])

    async with start(script) as gateway:
        clients = [await connect(gateway, BODY | {"stream": True}) for _ in range(200)]
        for reader, _ in clients:
            await reader.readuntil(b"river")
        for _, writer in clients:
            writer.close()
        wait = False
        async with http.post(gateway.http + CHAT, json=BODY) as reply:
            assert reply.status == 200
        await eventually(lambda: gateway.generator.running == 0)
        assert gateway.count("pdd_requests_total", route=CHAT, status="499") == 200


def endless(spec: GenerationSpec) -> Iterable[Step]:
    """Far more text than any socket buffers."""
    while True:
        yield steps(spec, LONG, bundle=len(LONG))[1]


async def test_a_client_that_does_not_read_is_cut_off(start: Start) -> None:
    async with start(endless, write_deadline_s=0.2) as gateway:
        _, writer = await connect(gateway, BODY | {"stream": True, "logprobs": True, "top_logprobs": 5})
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            await gateway.generator.left.wait()
        await outcome(gateway, "499")
        writer.transport.abort()


async def test_what_is_buffered_for_a_client_that_does_not_read_is_bounded(start: Start) -> None:
    async with start(endless, write_deadline_s=20.0) as gateway:
        _, writer = await connect(gateway, BODY | {"stream": True, "logprobs": True, "top_logprobs": 5})
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stands_still(lambda: gateway.count("pdd_output_tokens_total", source="main-0"))
        writer.transport.abort()
        async with asyncio.timeout(10):
            await gateway.generator.left.wait()


async def test_stopping_the_server_ends_running_answers_and_not_as_if_they_were_complete(start: Start) -> None:
    async with start(two_tokens_then_wait) as gateway:
        reader, writer = await connect(gateway, BODY | {"stream": True})
        await reader.readuntil(b"river")
    assert gateway.generator.left.is_set()
    rest = await reader.read()
    assert b"[DONE]" not in rest
    assert not rest.endswith(b"0\r\n\r\n")  # the last chunk of a whole body
    writer.close()


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(start: Start) -> None:
    async with start(two_tokens_then_wait, body_deadline_s=0.1) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.http.removeprefix("http://").split(":"))
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % CHAT.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        writer.close()
