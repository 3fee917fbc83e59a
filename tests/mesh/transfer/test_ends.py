"""Ends from the receiver's side: cancels, leases, and memory that goes to others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc.aio
import pytest
from structlog.testing import capture_logs

from pdd.identity import RequestId
from pdd.transfer.base import Refusal
from pdd.transfer.messages import SERVICE
from pdd.v1 import kv_pb2
from tests.eventually import eventually
from tests.mesh.transfer.site import Call, Site, answer, outcome, refusal, site
from tests.unit.transfer.parts import FOREIGN, REQUEST, commit, frame, layout, offered, payloads

BLOCKS = 4
MADE = payloads(BLOCKS)
MIB = 1 << 20


async def committed(decoder: Site, request: RequestId = REQUEST) -> None:
    call = await decoder.wanted(BLOCKS, request=request)
    await call.write(frame(MADE, request=request))
    await call.write(commit(MADE, request))
    assert (await outcome(call)).HasField("committed")


async def test_a_cancel_frees_at_once_tells_the_sender_and_not_the_listener() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        await call.write(frame(MADE[:2]))
        decoder.receiver.cancel(REQUEST)
        assert decoder.store.used_bytes == 0
        assert await refusal(call) is Refusal.CANCELLED_ATTEMPT
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.CANCELLED_ATTEMPT
        assert (heard.failures, heard.received) == ([], [])


async def test_a_sender_that_writes_on_past_a_cancel_is_heard_out() -> None:
    async with site() as decoder:
        decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        decoder.receiver.cancel(REQUEST)  # while its handler waits for a frame
        assert (reply := await answer(call)).HasField("refused"), reply
        for index, block in enumerate(MADE):
            await call.write(frame([block], index))
        await call.write(commit(MADE))
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert decoder.store.used_bytes == 0


async def test_a_hundred_cancelled_transfers_give_their_memory_back_at_once() -> None:
    requests = [RequestId(0xA, counter) for counter in range(1, 101)]
    async with site(budget_bytes=100 * 64) as decoder:
        calls = []
        for request in requests:
            decoder.admit(BLOCKS, request)
            calls.append(await decoder.wanted(BLOCKS, request=request))
            await calls[-1].write(frame(MADE[:2], request=request))
        assert decoder.receiver.usage() == 1.0
        for request in requests:
            decoder.receiver.cancel(request)
        assert decoder.store.used_bytes == 0
        for call in calls:
            assert await refusal(call) is Refusal.CANCELLED_ATTEMPT


async def keep_sending(call: Call, blocks: list[bytes]) -> None:
    """Frames without a pause, as long as the stream takes them."""
    for index, block in enumerate(blocks):
        await call.write(frame([block], index, block_bytes=MIB // 4))


async def test_late_frames_of_a_cancelled_transfer_never_reach_memory_given_to_others() -> None:
    size = MIB // 4
    theirs, ours = payloads(64, size), [bytes([index]) * size for index in range(64)]
    async with site(budget_bytes=64 * size, of=layout(size)) as decoder:
        decoder.admit(64)
        call = await decoder.wanted(64, size)
        sending = asyncio.create_task(keep_sending(call, theirs))
        assert (await answer(call)).HasField("credit")  # the frames are under way
        decoder.receiver.cancel(REQUEST)
        heard = decoder.admit(64, FOREIGN)
        other = await decoder.wanted(64, size, FOREIGN)  # all of the memory, while the late frames come
        for index, block in enumerate(ours):
            await other.write(frame([block], index, FOREIGN, size))
        await other.write(commit(ours, FOREIGN))
        await sending
        assert await refusal(call) is Refusal.CANCELLED_ATTEMPT
        await eventually(lambda: bool(heard.received))
        assert [bytes(payload) for payload in heard.received[0].payloads] == ours


async def test_a_transfer_that_outlives_its_lease_is_refused_and_freed() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS, lease_s=0.5)
        call = await decoder.wanted(BLOCKS)
        await call.write(frame(MADE[:2]))
        assert await refusal(call) is Refusal.LEASE_EXPIRED  # though nothing comes any more
        assert (heard.reasons, decoder.store.used_bytes) == ([Refusal.LEASE_EXPIRED], 0)


@pytest.mark.parametrize("after_offer", [False, True])
async def test_a_message_that_cannot_be_decoded_ends_the_transfer_by_name(after_offer: bool) -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call: grpc.aio.StreamStreamCall[bytes, bytes] = decoder.channel.stream_stream(f"/{SERVICE}/Push")()
        if after_offer:
            await call.write(kv_pb2.PushRequest(offer=offered(BLOCKS).to_proto()).SerializeToString())
            await call.read()
        with capture_logs() as logs:
            await call.write(b"\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not the PushRequest" in await call.details()
        assert [entry["log_level"] for entry in logs if "decoded" in entry["event"]] == ["warning"]
        # The status leaves first.
        await eventually(lambda: (len(heard.failures), decoder.store.used_bytes) == (int(after_offer), 0))


async def test_an_admission_that_is_never_offered_expires() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS, lease_s=0.05)
        await eventually(lambda: bool(heard.failures))
        assert heard.reasons == [Refusal.LEASE_EXPIRED]
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.LEASE_EXPIRED


async def test_received_kv_that_is_not_released_expires_and_its_owner_is_told() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS, lease_s=0.5)
        await committed(decoder)
        assert len(heard.received) == 1
        await eventually(lambda: bool(heard.failures))
        assert (heard.reasons, decoder.store.used_bytes) == ([Refusal.LEASE_EXPIRED], 0)
        decoder.receiver.release(REQUEST)  # too late, and harmless


async def test_received_kv_of_an_attempt_that_is_outdated_is_taken_back() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        await committed(decoder)
        decoder.admit(BLOCKS, replace(REQUEST, attempt=REQUEST.attempt + 1))
        assert decoder.store.used_bytes == 0
        await eventually(lambda: bool(heard.failures))
        assert heard.reasons == [Refusal.STALE_ATTEMPT]


async def test_received_kv_is_held_until_it_is_released_and_comes_once() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        await committed(decoder)
        assert decoder.store.used_bytes == 64
        decoder.receiver.release(REQUEST)
        assert decoder.store.used_bytes == 0
        decoder.receiver.release(REQUEST)
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.OUT_OF_TURN
        assert heard.failures == []


async def test_received_kv_goes_with_a_cancel_too() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        await committed(decoder)
        decoder.receiver.cancel(REQUEST)
        assert (decoder.store.used_bytes, heard.failures) == (0, [])


async def test_what_has_not_come_can_not_be_released() -> None:
    async with site() as decoder:
        decoder.admit(BLOCKS)
        with pytest.raises(ValueError, match="is not received yet: cancel it"):
            decoder.receiver.release(REQUEST)
