"""An answer of `pdd.client` that is complete, while the call that brought it has not ended yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
import pytest

from gateway.inference import SERVICE, Context
from pdd.client import AsyncAnswer, AsyncClient, Client, Request, Text
from pdd.rpc.server import serve
from pdd.v1 import inference_pb2
from tests.eventually import eventually

SEA = Request(Text(" the sea"))


async def whole_and_open(_request: inference_pb2.GenerateRequest, context: Context) -> None:
    """Send the end of an answer, and no status after it."""
    await context.write(inference_pb2.GenerateReply(done=inference_pb2.Done(finish_reason="stop")))
    await asyncio.Event().wait()


def register(server: grpc.aio.Server) -> Sequence[str]:
    read, write = inference_pb2.GenerateRequest.FromString, inference_pb2.GenerateReply.SerializeToString
    generate = grpc.unary_stream_rpc_method_handler(whole_and_open, read, write)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Generate": generate}),))
    return [SERVICE]


async def test_a_cancel_behind_the_last_token_is_no_error() -> None:
    async with serve("127.0.0.1:0", register) as server:
        async with AsyncClient(server.address) as client, client.generate(SEA) as answer:
            reading = asyncio.create_task(read(answer))
            await eventually(lambda: answer.ended)
            answer.cancel()
            await reading
        assert answer.result.finish_reason == "stop"


async def read(answer: AsyncAnswer) -> None:
    async for _ in answer:
        pass


async def test_nor_is_it_where_a_thread_reads() -> None:
    async with serve("127.0.0.1:0", register) as server:
        with Client(server.address) as client, client.generate(SEA) as answer:
            reading = asyncio.create_task(asyncio.to_thread(list, answer))
            await eventually(lambda: answer.ended)
            answer.cancel()
            await reading
        assert answer.result.finish_reason == "stop"


async def test_a_task_that_is_cancelled_there_is_cancelled() -> None:
    async with (
        serve("127.0.0.1:0", register) as server,
        AsyncClient(server.address) as client,
        client.generate(SEA) as answer,
    ):
        reading = asyncio.create_task(read(answer))
        await eventually(lambda: answer.ended)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
