"""A receiver behind a real gRPC server on loopback, and a hand-driven sender that can do what ours never does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc.aio

from pdd.identity import RequestId
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.kv.layout import KvLayout
from pdd.kv.store import BlockStore
from pdd.rpc.channel import open_channel
from pdd.rpc.server import serve
from pdd.transfer.base import Refusal
from pdd.transfer.messages import SERVICE, add_push
from pdd.transfer.receiver import Receiver, ReceiverSettings
from pdd.v1 import kv_pb2, kv_pb2_grpc
from tests.unit.transfer.parts import BLOCK_TOKENS, REQUEST, SALT, Heard, layout, offered, prompt

Call: TypeAlias = "grpc.aio.StreamStreamCall[kv_pb2.PushRequest, kv_pb2.PushReply]"

DEADLINE_S = 20.0  # for a hung test to fail; nothing waits for it


@dataclass
class Site:
    """One decoder's receiving side."""

    receiver: Receiver
    store: BlockStore
    cache: PrefixCache
    address: str
    channel: grpc.aio.Channel

    def admit(self, blocks: int, request: RequestId = REQUEST, lease_s: float = 60.0) -> Heard:
        heard = Heard()
        self.receiver.admit(request, prompt(blocks), SALT, lease_s, heard)
        return heard

    def cached(self, blocks: int) -> int:
        """How many blocks of that prompt are cached."""
        return self.cache.match(prefix_of(prompt(blocks), BLOCK_TOKENS, SALT))

    def call(self) -> Call:
        return kv_pb2_grpc.KvTransferStub(self.channel).Push(timeout=DEADLINE_S)

    async def offering(self, blocks: int, block_bytes: int = 16, request: RequestId = REQUEST) -> Call:
        """A stream whose offer was written; its answer is the next to be read."""
        call = self.call()
        await call.write(kv_pb2.PushRequest(offer=offered(blocks, block_bytes, request).to_proto()))
        return call

    async def wanted(self, blocks: int, block_bytes: int = 16, request: RequestId = REQUEST) -> Call:
        """A stream whose offer was accepted."""
        call = await self.offering(blocks, block_bytes, request)
        assert (await answer(call)).HasField("want")
        return call


@asynccontextmanager
async def site(
    budget_bytes: int = 1 << 20,
    settings: ReceiverSettings | None = None,
    of: KvLayout | None = None,
    cache_bytes: int = 0,
) -> AsyncIterator[Site]:
    store = BlockStore(budget_bytes)
    cache = PrefixCache(store, BLOCK_TOKENS, cache_bytes)
    receiver = Receiver(of or layout(), store, settings or ReceiverSettings(sweep_s=0.01), cache)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        add_push(server, receiver.push)
        return (SERVICE,)

    async with receiver, serve("127.0.0.1:0", register) as server, open_channel(server.address) as channel:
        yield Site(receiver, store, cache, server.address, channel)


async def answer(call: Call) -> kv_pb2.PushReply:
    reply = await call.read()
    assert isinstance(reply, kv_pb2.PushReply), f"the stream ended: {await call.code()}"
    return reply


async def outcome(call: Call) -> kv_pb2.PushReply:
    """The next answer that is no credit."""
    reply = await answer(call)
    while reply.HasField("credit"):
        reply = await answer(call)
    return reply


async def refusal(call: Call) -> Refusal:
    """The reason of the refusal that ends the stream, credit before it passed over."""
    reply = await outcome(call)
    assert reply.WhichOneof("kind") == "refused", reply
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    return Refusal(reply.refused.reason)
