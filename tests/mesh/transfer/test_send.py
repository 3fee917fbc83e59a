"""Sender and receiver together, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio
import pytest

from pdd.identity import RequestId
from pdd.rpc.channel import open_channel
from pdd.rpc.server import serve
from pdd.transfer.base import Refusal, TransferLost, TransferRefused
from pdd.transfer.feed import BlockFeed
from pdd.transfer.outbound import TransferReport
from pdd.transfer.receiver import ReceiverSettings
from pdd.transfer.sender import SenderSettings, send
from pdd.v1 import kv_pb2, kv_pb2_grpc
from tests.eventually import eventually
from tests.mesh.transfer.site import DEADLINE_S, Site, site
from tests.unit.transfer.parts import FIRST_TOKEN, REQUEST, Heard, layout, offered, payloads

BLOCKS = 4
MADE = payloads(BLOCKS)
MIB = 1 << 20


@dataclass
class Sending:
    """A transfer under way in a task of its own."""

    blocks: int = BLOCKS
    block_bytes: int = 16
    request: RequestId = REQUEST
    feed: BlockFeed = field(default_factory=BlockFeed)
    wanted: list[tuple[int, int]] = field(default_factory=list)

    def to(self, channel: grpc.aio.Channel, settings: SenderSettings | None = None) -> asyncio.Task[TransferReport]:
        offer = offered(self.blocks, self.block_bytes, self.request)

        def on_wanted(missing_blocks: int, missing_bytes: int) -> None:
            self.wanted.append((missing_blocks, missing_bytes))

        sent = send(channel, offer, self.feed, on_wanted=on_wanted, lease_s=DEADLINE_S, settings=settings)
        return asyncio.create_task(sent)

    def finish(self, made: Sequence[bytes]) -> None:
        self.feed.append(made)
        self.feed.complete(FIRST_TOKEN, final=False)


async def in_mid_transfer(
    decoder: Site, transfer: Sending, channel: grpc.aio.Channel | None = None
) -> tuple[Heard, asyncio.Task[TransferReport]]:
    """The offer is accepted, one block has been made, and more are to come."""
    heard = decoder.admit(transfer.blocks, transfer.request)
    running = transfer.to(channel or decoder.channel)
    await eventually(lambda: bool(transfer.wanted))
    transfer.feed.append(MADE[:1])
    return heard, running


async def test_a_transfer_is_offered_before_its_blocks_exist_and_arrives_whole() -> None:
    async with site() as decoder:
        heard, transfer = decoder.admit(BLOCKS), Sending()
        running = transfer.to(decoder.channel)
        await eventually(lambda: transfer.wanted == [(4, 64)])
        assert heard.wanted_blocks == [(4, 64)]
        transfer.feed.append(MADE[:1])
        transfer.feed.append(MADE[1:3])
        transfer.finish(MADE[3:])
        report = await running
        assert (report.blocks, report.bytes) == (4, 64)
        assert 0 <= report.first_frame_to_commit_s <= report.offer_to_commit_s
        received = heard.received[0]
        assert [bytes(payload) for payload in received.payloads] == MADE
        assert (received.first_token, received.final) == (FIRST_TOKEN, False)


async def test_a_prompt_under_one_block_arrives_with_its_first_token() -> None:
    async with site() as decoder:
        heard, transfer = decoder.admit(0), Sending(blocks=0)
        running = transfer.to(decoder.channel)
        transfer.feed.complete(FIRST_TOKEN, final=True)
        report = await running
        assert (report.blocks, report.bytes, report.first_frame_to_commit_s) == (0, 0, 0.0)
        assert (heard.received[0].payloads, heard.received[0].first_token, heard.received[0].final) == ((), FIRST_TOKEN, True)


async def test_a_transfer_of_many_windows_arrives_whole() -> None:
    blocks, size = 120, 368_640
    made = payloads(blocks, size)
    settings = ReceiverSettings(credit_bytes=4 * MIB)
    async with site(budget_bytes=blocks * size, settings=settings, of=layout(size)) as decoder:
        heard, transfer = decoder.admit(blocks), Sending(blocks, size)
        transfer.finish(made)
        report = await transfer.to(decoder.channel)
        assert report.bytes == blocks * size
        assert [bytes(payload) for payload in heard.received[0].payloads] == made


async def test_one_feed_serves_two_targets_and_a_refusal_of_one_leaves_the_other_alone() -> None:
    async with site() as relay, site(budget_bytes=1) as main:
        transfer, second = Sending(), Sending()
        second.feed = transfer.feed
        relay_heard, main_heard = relay.admit(BLOCKS), main.admit(BLOCKS)
        to_relay, to_main = transfer.to(relay.channel), second.to(main.channel)
        with pytest.raises(TransferRefused) as caught:
            await to_main
        assert caught.value.reason is Refusal.NO_MEMORY
        transfer.finish(MADE)
        assert (await to_relay).blocks == 4
        assert (len(relay_heard.received), main_heard.reasons) == (1, [Refusal.NO_MEMORY])


async def test_a_refusal_in_mid_transfer_stops_a_sender_that_waits_for_blocks() -> None:
    async with site() as decoder:
        _, running = await in_mid_transfer(decoder, Sending())
        decoder.receiver.cancel(REQUEST)
        with pytest.raises(TransferRefused) as caught:
            await running
        assert caught.value.reason is Refusal.CANCELLED_ATTEMPT


async def test_a_refusal_in_mid_transfer_stops_a_sender_that_waits_for_credit() -> None:
    async with served(StuckAfterWant()) as address, open_channel(address) as channel:
        transfer = Sending(8, MIB)
        transfer.finish(payloads(8, MIB))
        with pytest.raises(TransferRefused) as caught:
            await transfer.to(channel)
        assert caught.value.reason is Refusal.NO_MEMORY


async def test_a_refusal_is_heard_as_such_in_the_middle_of_writing() -> None:
    made = payloads(32, MIB)
    async with site(budget_bytes=32 * MIB, of=layout(MIB)) as decoder:
        for attempt in range(20):
            request = replace(REQUEST, attempt=attempt)
            heard, transfer = decoder.admit(32, request), Sending(32, MIB, request)
            transfer.feed.append(made)
            running = transfer.to(decoder.channel)
            await eventually(lambda heard=heard: bool(heard.wanted_blocks))  # type: ignore[misc]
            decoder.receiver.cancel(request)
            with pytest.raises(TransferRefused) as caught:
                await running
            assert caught.value.reason is Refusal.CANCELLED_ATTEMPT
            assert (heard.received, decoder.store.used_bytes) == ([], 0)


class StuckAfterWant(kv_pb2_grpc.KvTransferServicer):
    """Grants one block's credit, never returns any, and refuses once that block has come."""

    async def Push(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[kv_pb2.PushRequest, kv_pb2.PushReply]
    ) -> None:
        await context.read()
        await context.write(kv_pb2.PushReply(want=kv_pb2.Want(credit_bytes=MIB)))
        await context.read()
        refused = kv_pb2.Refused(reason=kv_pb2.REFUSAL_REASON_NO_MEMORY, message="test")
        await context.write(kv_pb2.PushReply(refused=refused))


class ForgetsToAnswer(kv_pb2_grpc.KvTransferServicer):
    """Takes everything, and ends the stream in good order without a word."""

    async def Push(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[kv_pb2.PushRequest, kv_pb2.PushReply]
    ) -> None:
        await context.read()
        await context.write(kv_pb2.PushReply(want=kv_pb2.Want(credit_bytes=MIB)))
        while isinstance(message := await context.read(), kv_pb2.PushRequest) and not message.HasField("commit"):
            pass


@asynccontextmanager
async def served(servicer: kv_pb2_grpc.KvTransferServicer) -> AsyncIterator[str]:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        kv_pb2_grpc.add_KvTransferServicer_to_server(servicer, server)
        return ("pdd.v1.KvTransfer",)

    async with serve("127.0.0.1:0", register) as server:
        yield server.address


async def test_a_stream_that_ends_without_an_answer_is_never_a_commit() -> None:
    async with served(ForgetsToAnswer()) as address, open_channel(address) as channel:
        transfer = Sending()
        transfer.finish(MADE)
        with pytest.raises(TransferLost, match="neither Committed nor Refused"):
            await transfer.to(channel)


async def test_cancelling_the_task_comes_back_when_the_receiver_has_freed_everything() -> None:
    async with site() as decoder:
        heard, running = await in_mid_transfer(decoder, Sending())
        assert decoder.store.used_bytes == 64
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (heard.reasons, decoder.store.used_bytes) == ([Refusal.CANCELLED_ATTEMPT], 0)
        assert "the sender cancelled" in heard.failures[0][1]


async def test_cancelling_a_hundred_tasks_frees_everything() -> None:
    async with site(budget_bytes=100 * 64) as decoder:
        under_way = [await in_mid_transfer(decoder, Sending(request=RequestId(0xA, counter))) for counter in range(1, 101)]
        assert decoder.receiver.usage() == 1.0
        for _, running in under_way:
            running.cancel()
        for heard, running in under_way:
            with pytest.raises(asyncio.CancelledError):
                await running
            assert heard.reasons == [Refusal.CANCELLED_ATTEMPT]
        assert decoder.store.used_bytes == 0


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_cancel_soon_after_the_start_never_waits_out_its_deadline(turns: int) -> None:
    """From before the offer is written to after it, however far the loop has come."""
    async with site(settings=ReceiverSettings(offer_s=2 * DEADLINE_S)) as decoder:
        decoder.admit(BLOCKS)
        running = Sending().to(decoder.channel, SenderSettings(cancel_s=2 * DEADLINE_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(asyncio.CancelledError):
                await running
        await eventually(lambda: decoder.store.used_bytes == 0)


async def test_a_cancel_while_the_offer_is_parked_does_not_wait_for_its_answer() -> None:
    async with site(settings=ReceiverSettings(park_s=DEADLINE_S)) as decoder:
        transfer = Sending()
        running = transfer.to(decoder.channel, SenderSettings(cancel_s=0.05, offer_s=DEADLINE_S))
        await eventually(lambda: decoder.receiver.parked == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        decoder.receiver.cancel(REQUEST)
        await eventually(lambda: decoder.receiver.parked == 0)


async def test_a_feed_that_fails_cancels_the_transfer_and_raises_its_error() -> None:
    async with site() as decoder:
        transfer = Sending()
        heard, running = await in_mid_transfer(decoder, transfer)
        transfer.feed.fail(RuntimeError("the engine broke"))
        with pytest.raises(RuntimeError, match="the engine broke"):
            await running
        assert (heard.reasons, decoder.store.used_bytes) == ([Refusal.CANCELLED_ATTEMPT], 0)


async def test_a_receiver_that_is_not_there_is_lost_at_once() -> None:
    async with site() as decoder:
        address = decoder.address
    async with open_channel(address) as channel:
        with pytest.raises(TransferLost, match="UNAVAILABLE"):
            await Sending().to(channel)


async def test_a_receiver_that_stops_in_mid_transfer_is_lost_at_once() -> None:
    async with AsyncExitStack() as outlives_the_receiver:
        async with site() as decoder:
            channel = await outlives_the_receiver.enter_async_context(open_channel(decoder.address))
            heard, running = await in_mid_transfer(decoder, Sending(), channel)
        with pytest.raises(TransferLost):
            await running
        assert (heard.reasons, decoder.store.used_bytes) == ([None], 0)


async def test_a_target_that_takes_the_connection_and_never_speaks_is_lost_at_the_offers_deadline() -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(TransferLost, match=r"within 0.1 s"):
            await Sending().to(channel, SenderSettings(offer_s=0.1))
        silent.close()


async def test_a_channel_closed_under_a_transfer_is_a_lost_transfer_and_no_cancelled_task() -> None:
    async with site() as decoder:
        heard, running = await in_mid_transfer(decoder, Sending())
        await decoder.channel.close()
        with pytest.raises(TransferLost, match="channel was closed"):
            await running
        await eventually(lambda: heard.reasons == [None])
