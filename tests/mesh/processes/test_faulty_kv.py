"""KV that is not what it should be, given to a real main: refused by name within a second, and never decoded from.

The test is the sender, since ours never does any of this. Main's memory holds one prompt's KV and not two, so that anything left
reserved would make the next transfer fail.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import grpc.aio
import pytest
import pytest_asyncio

from pdd.catalog.base import Registration, Role
from pdd.catalog.embedded import embedded_valkey
from pdd.engine.sim.reference import continuation, prompt_blocks
from pdd.identity import Instance, RequestId
from pdd.kv.hashing import chain_hashes
from pdd.kv.wire import block_checksum, build_frame, commit_digest
from pdd.rpc.channel import open_channel
from pdd.transfer.base import Refusal
from pdd.transfer.messages import encode_push
from pdd.transfer.outbound import OfferedKv
from pdd.v1 import decode_pb2, kv_pb2, kv_pb2_grpc
from tests.mesh.processes.services import registered, running_service
from tests.mesh.services.gateways import DecodeStream, attached_decoder
from tests.mesh.services.instances import BLOCK_TOKENS, greedy, prompt

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

BUDGET_MB = 8
BLOCKS = 22  # of 360 KiB each: fit once
IDS = prompt(BLOCKS * BLOCK_TOKENS + 5)
ANSWER = continuation(IDS, 12, ignore_eos=True)
PAYLOADS = prompt_blocks(IDS)
COUNTERS = itertools.count(1)

Push: TypeAlias = "grpc.aio.StreamStreamCall[kv_pb2.PushRequest, kv_pb2.PushReply]"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def main() -> AsyncIterator[Registration]:
    settings = {"PDD_KV_BUDGET_MB": str(BUDGET_MB), "PDD_PREFIX_CACHE_MB": "0"}  # or what came once is not wanted again
    async with embedded_valkey() as redis_url, running_service(Role.MAIN, redis_url, **settings):
        yield (await registered(redis_url, 1))[Role.MAIN]


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(main: Registration) -> AsyncIterator[DecodeStream]:
    async with attached_decoder(main.address) as stream:
        yield stream


@dataclass(frozen=True, slots=True)
class Sender:
    """Builds the messages of one transfer."""

    request: RequestId
    block_bytes: int

    def frame(self, first: int, last: int, request: RequestId | None = None) -> kv_pb2.PushRequest:
        """Blocks [first, last)."""
        blocks = PAYLOADS[first:last]
        return kv_pb2.PushRequest.FromString(encode_push(build_frame(request or self.request, first, blocks, self.block_bytes)))

    def commit(self, count: int = BLOCKS) -> kv_pb2.PushRequest:
        digest = commit_digest([block_checksum(payload) for payload in PAYLOADS])
        message = kv_pb2.Commit(request=self.request.to_proto(), block_count=count, digest=digest, first_token=ANSWER[0])
        return kv_pb2.PushRequest(commit=message)

    def whole(self) -> list[kv_pb2.PushRequest]:
        return [self.frame(first, min(first + 2, BLOCKS)) for first in range(0, BLOCKS, 2)]


def corrupted(sender: Sender) -> list[kv_pb2.PushRequest]:
    message = sender.frame(2, 4)
    payload = message.frame.payload
    message.frame.payload = bytes([payload[0] ^ 1]) + payload[1:]
    return [sender.frame(0, 2), message]


def missing(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [sender.frame(0, 2), sender.frame(4, 6)]


def duplicated(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [sender.frame(0, 2), sender.frame(2, 4), sender.frame(2, 4)]


def foreign(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [sender.frame(0, 2), sender.frame(2, 4, replace(sender.request, counter=sender.request.counter + 1000))]


def of_an_old_attempt(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [sender.frame(0, 2), sender.frame(2, 4, replace(sender.request, attempt=0))]


def wrong_count(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [*sender.whole(), sender.commit(BLOCKS - 1)]


def commit_before_the_last_block(sender: Sender) -> list[kv_pb2.PushRequest]:
    return [*sender.whole()[:-1], sender.commit()]


def wrong_digest(sender: Sender) -> list[kv_pb2.PushRequest]:
    message = sender.commit()
    message.commit.digest ^= 1
    return [*sender.whole(), message]


def offer_of(main: Registration, request: RequestId) -> kv_pb2.PushRequest:
    hashes = chain_hashes(IDS, BLOCK_TOKENS, "")
    offer = OfferedKv(request, Instance("prefill-9", 1), main.layout, len(IDS), hashes)
    return kv_pb2.PushRequest(offer=offer.to_proto())


async def wanted(channel: grpc.aio.Channel, main: Registration, sender: Sender) -> Push:
    """A transfer that main wants."""
    call = kv_pb2_grpc.KvTransferStub(channel).Push(timeout=20)
    await call.write(offer_of(main, sender.request))
    reply = await call.read()
    assert isinstance(reply, kv_pb2.PushReply)
    assert reply.HasField("want"), reply
    return call


async def verdict(call: Push) -> kv_pb2.PushReply:
    """The next reply that is no credit."""
    while True:
        reply = await call.read()
        assert isinstance(reply, kv_pb2.PushReply)
        if not reply.HasField("credit"):
            return reply


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (corrupted, Refusal.CHECKSUM_MISMATCH),
        (missing, Refusal.MISSING_BLOCK),
        (duplicated, Refusal.DUPLICATE_BLOCK),
        (foreign, Refusal.FOREIGN_FRAME),
        (of_an_old_attempt, Refusal.STALE_ATTEMPT),
        (wrong_count, Refusal.COUNT_MISMATCH),
        (commit_before_the_last_block, Refusal.COUNT_MISMATCH),
        (wrong_digest, Refusal.DIGEST_MISMATCH),
    ],
)
async def test_faulty_kv_is_refused_by_name_and_leaves_nothing(
    main: Registration, gateway: DecodeStream, fault: Callable[[Sender], list[kv_pb2.PushRequest]], refusal: Refusal
) -> None:
    bad = Sender(RequestId(5, next(COUNTERS), attempt=1), main.layout.block_bytes)
    good = Sender(RequestId(5, next(COUNTERS)), main.layout.block_bytes)
    async with open_channel(main.address) as channel:
        # The handoff waits for this KV: not one token may come of it.
        await gateway.admit(1, bad.request, IDS, greedy(12))
        await gateway.extend(1, 0, ANSWER[:2], then_decode=True)
        call = await wanted(channel, main, bad)
        *harmless, faulty = fault(bad)
        for message in harmless:
            await call.write(message)
        async with asyncio.timeout(1.0):
            await call.write(faulty)
            refused = (await verdict(call)).refused
        assert refused.reason == refusal.value, refused
        told = await gateway.until_closed(1)
        assert told.error.code == decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED
        assert told.error.message.startswith(refusal.name)
        await gateway.until(lambda: gateway.idle)

        # Everything is free: KV of the whole budget is taken, and decoded from.
        await gateway.admit(2, good.request, IDS, greedy(12))
        await gateway.extend(2, 0, ANSWER[:2], then_decode=True)
        call = await wanted(channel, main, good)
        for message in [*good.whole(), good.commit()]:
            await call.write(message)
        assert (await verdict(call)).HasField("committed")
        assert (await gateway.until_closed(2)).ids == ANSWER[2:]
        assert (told.tokens, told.extended_to, told.kv_ready) == ([], [], False)
        await gateway.until(lambda: gateway.idle)


async def test_a_sender_that_vanishes_leaves_nothing(main: Registration, gateway: DecodeStream) -> None:
    sender = Sender(RequestId(5, next(COUNTERS)), main.layout.block_bytes)
    await gateway.admit(1, sender.request, IDS, greedy(12))
    await gateway.extend(1, 0, ANSWER[:2], then_decode=True)
    async with open_channel(main.address) as channel:
        call = await wanted(channel, main, sender)
        for message in sender.whole():
            await call.write(message)
        call.cancel()
    told = await gateway.until_closed(1)
    assert told.error.message.startswith("SENDER_LOST")
    assert told.tokens == []
    await gateway.until(lambda: gateway.idle)


@pytest.mark.parametrize(
    ("offer_attempt", "refusal"), [(0, Refusal.STALE_ATTEMPT), (2, Refusal.UNKNOWN_REQUEST)], ids=["old", "not admitted"]
)
async def test_an_offer_of_another_attempt_is_refused(
    main: Registration, gateway: DecodeStream, offer_attempt: int, refusal: Refusal
) -> None:
    admitted = RequestId(5, next(COUNTERS), attempt=1)
    await gateway.admit(1, admitted, IDS, greedy(12))
    await gateway.abort(2)
    await gateway.until_closed(2)  # the admission was taken before this answer was given
    async with open_channel(main.address) as channel:
        call = kv_pb2_grpc.KvTransferStub(channel).Push(timeout=20)
        await call.write(offer_of(main, replace(admitted, attempt=offer_attempt)))
        assert (await verdict(call)).refused.reason == refusal.value
    await gateway.abort(1)
    assert (await gateway.until_closed(1)).ended == "aborted"
    await gateway.until(lambda: gateway.idle)
