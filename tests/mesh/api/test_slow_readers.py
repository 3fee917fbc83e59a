"""Clients that read a byte now and then: what they can hold up is bounded, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import aiohttp

from gateway.generation import GenerationSpec
from tests.mesh.api.conftest import CARD, Gateway, Start, stands_still
from tests.unit.gateway_api.scripted import Step, steps

CHAT = "/v1/chat/completions"
LONG = CARD.encode(" river" * 200)
SLOW = "slow"  # its x-request-id
READ_EVERY_S = 0.02


def endless_for_the_slow_one(spec: GenerationSpec) -> Iterable[Step]:
    if spec.label != SLOW:
        yield from steps(spec, LONG[:20])
        return
    while True:
        yield steps(spec, LONG, bundle=len(LONG))[1]


def body(**fields: object) -> bytes:
    return json.dumps({"model": "pdd-sim", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


@asynccontextmanager
async def one_byte_at_a_time(gateway: Gateway) -> AsyncIterator[socket.socket]:
    """A client with the smallest buffer there is, that takes a byte of an endless answer every now and then."""
    loop = asyncio.get_running_loop()
    host, port = gateway.http.removeprefix("http://").split(":")
    data = body(stream=True)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nx-request-id: {SLOW}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.setblocking(False)
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, head.encode() + data)
        reading = asyncio.create_task(_sip(client))
        try:
            yield client
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def _sip(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):  # cut off
        while True:
            if not await loop.sock_recv(client, 1):
                return
            await asyncio.sleep(READ_EVERY_S)


async def test_a_client_that_reads_a_byte_at_a_time_is_cut_off(start: Start) -> None:
    async with start(endless_for_the_slow_one, write_deadline_s=0.3) as gateway, one_byte_at_a_time(gateway):
        async with asyncio.timeout(30):
            await gateway.generator.left.wait()
        assert gateway.generator.running == 0


async def test_others_are_served_while_a_client_reads_a_byte_at_a_time(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(endless_for_the_slow_one, write_deadline_s=60.0) as gateway, one_byte_at_a_time(gateway):
        # From here on everything that can be buffered for it is.
        await stands_still(lambda: gateway.count("pdd_output_tokens_total", source="main-0"))
        for stream in (True, False):
            async with http.post(gateway.http + CHAT, data=body(stream=stream, max_tokens=20)) as reply:
                assert reply.status == 200
                assert ("[DONE]" if stream else " river" * 20) in await reply.text()
        assert gateway.generator.running == 1
