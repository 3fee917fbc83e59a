"""What a receiver does with a sender that breaks the protocol, over a real connection: refused by name, nothing kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc.aio
import pytest

from pdd.transfer.base import Refusal
from pdd.transfer.receiver import ReceiverSettings
from pdd.v1 import kv_pb2
from tests.eventually import eventually
from tests.mesh.transfer.site import answer, outcome, refusal, site
from tests.unit.transfer.parts import FOREIGN, OLD_ATTEMPT, REQUEST, cancel, commit, damaged, frame, offered, payloads

BLOCKS = 4
MADE = payloads(BLOCKS)
Messages = Callable[[], list[kv_pb2.PushRequest]]


@dataclass(frozen=True)
class Fault:
    name: str
    messages: Messages
    reason: Refusal


FAULTS = [
    Fault("corrupted", lambda: [frame(MADE[:2]), damaged(frame(MADE[2:], 2))], Refusal.CHECKSUM_MISMATCH),
    Fault("missing", lambda: [frame(MADE[:1]), frame(MADE[2:], 2)], Refusal.MISSING_BLOCK),
    Fault("duplicated", lambda: [frame(MADE[:2]), frame(MADE[:2])], Refusal.DUPLICATE_BLOCK),
    Fault("foreign", lambda: [frame(MADE[:2]), frame(MADE[2:], 2, FOREIGN)], Refusal.FOREIGN_FRAME),
    Fault("old attempt", lambda: [frame(MADE[:2]), frame(MADE[2:], 2, OLD_ATTEMPT)], Refusal.STALE_ATTEMPT),
    Fault("one too few", lambda: [frame(MADE[:3]), commit(MADE[:3])], Refusal.COUNT_MISMATCH),
    Fault("wrong count", lambda: [frame(MADE), commit(MADE, count=5)], Refusal.COUNT_MISMATCH),
    Fault("wrong digest", lambda: [frame(MADE), commit(MADE[::-1])], Refusal.DIGEST_MISMATCH),
    Fault("beyond the offer", lambda: [frame(payloads(5))], Refusal.MALFORMED_FRAME),
    Fault("second offer", lambda: [kv_pb2.PushRequest(offer=offered(BLOCKS).to_proto())], Refusal.OUT_OF_TURN),
    Fault("empty message", lambda: [kv_pb2.PushRequest()], Refusal.OUT_OF_TURN),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_is_refused_by_name_and_nothing_stays_reserved_or_cached(fault: Fault) -> None:
    async with site(cache_bytes=1 << 20) as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        assert decoder.store.used_bytes == 64
        for message in fault.messages():
            await call.write(message)
        assert await refusal(call) is fault.reason
        assert heard.reasons == [fault.reason]
        assert (heard.received, decoder.store.used_bytes, decoder.receiver.usage()) == ([], 0, 0.0)
        # The attempt is over: only the gateway retries, under a new one.
        assert await refusal(await decoder.offering(BLOCKS)) is fault.reason


@pytest.mark.parametrize(
    "first", [frame(MADE), commit(MADE), cancel(), kv_pb2.PushRequest()], ids=["frame", "commit", "cancel", "empty"]
)
async def test_a_stream_that_does_not_start_with_an_offer_is_refused(first: kv_pb2.PushRequest) -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call = decoder.call()
        await call.write(first)
        assert await refusal(call) is Refusal.OUT_OF_TURN
        assert heard.failures == []


async def test_a_stream_without_an_offer_is_not_kept_open() -> None:
    async with site(settings=ReceiverSettings(offer_s=0.01)) as decoder:
        assert await refusal(decoder.call()) is Refusal.OUT_OF_TURN


async def test_an_attempt_is_transferred_on_one_stream_only() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.OUT_OF_TURN
        await call.write(frame(MADE))
        await call.write(commit(MADE))
        assert (await outcome(call)).HasField("committed")
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.OUT_OF_TURN
        assert (len(heard.received), heard.failures) == (1, [])


async def test_a_second_commit_changes_nothing() -> None:
    async with site(cache_bytes=1 << 20) as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        for message in (frame(MADE), commit(MADE), commit(MADE)):
            await call.write(message)
        assert (await outcome(call)).HasField("committed")
        assert await call.read() is grpc.aio.EOF
        assert (len(heard.received), heard.failures, decoder.store.used_bytes) == (1, [], 64)


@pytest.mark.parametrize("end", ["half-closed", "cancelled", "disconnected"])
async def test_a_stream_that_ends_one_block_short_and_without_commit_is_a_lost_sender(end: str) -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        await call.write(frame(MADE[:3]))
        match end:
            case "half-closed":
                await call.done_writing()
            case "cancelled":
                call.cancel()
            case "disconnected":
                await decoder.channel.close()
        await eventually(lambda: bool(heard.failures))
        assert heard.reasons == [None]
        assert (heard.received, decoder.store.used_bytes) == ([], 0)


async def test_all_blocks_without_a_commit_are_not_a_prompt() -> None:
    async with site() as decoder:
        heard = decoder.admit(BLOCKS)
        call = await decoder.wanted(BLOCKS)
        await call.write(frame(MADE))
        await call.done_writing()
        await eventually(lambda: bool(heard.failures))
        assert (heard.reasons, heard.received, decoder.store.used_bytes) == ([None], [], 0)


async def test_an_offer_without_an_admission_is_refused_after_a_while() -> None:
    async with site(settings=ReceiverSettings(park_s=0.02)) as decoder:
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.UNKNOWN_REQUEST


async def test_an_offer_that_overtakes_its_admission_is_taken_when_that_comes() -> None:
    async with site(settings=ReceiverSettings(park_s=30.0)) as decoder:
        call = await decoder.offering(BLOCKS)
        reading = asyncio.create_task(answer(call))
        await eventually(lambda: decoder.receiver.parked == 1)
        heard = decoder.admit(BLOCKS)
        assert (await reading).HasField("want")
        assert heard.wanted_blocks == [(4, 64)]


async def test_a_cancel_reaches_an_offer_that_is_parked() -> None:
    async with site(settings=ReceiverSettings(park_s=30.0)) as decoder:
        call = await decoder.offering(BLOCKS)
        await eventually(lambda: decoder.receiver.parked == 1)
        decoder.receiver.cancel(REQUEST)
        assert await refusal(call) is Refusal.CANCELLED_ATTEMPT


async def test_a_newer_attempt_stops_the_older_ones_transfer() -> None:
    async with site() as decoder:
        old, newer = decoder.admit(BLOCKS, REQUEST), replace(REQUEST, attempt=2)
        call = await decoder.wanted(BLOCKS)
        await call.write(frame(MADE[:2]))
        new = decoder.admit(BLOCKS, newer)
        assert old.failures == []  # not from within admit
        assert await refusal(call) is Refusal.STALE_ATTEMPT
        assert old.reasons == [Refusal.STALE_ATTEMPT]
        assert await refusal(await decoder.offering(BLOCKS)) is Refusal.STALE_ATTEMPT
        await decoder.wanted(BLOCKS, request=newer)
        assert (new.failures, decoder.store.used_bytes) == ([], 64)


async def test_a_peer_of_another_model_and_a_range_that_does_not_fit_are_refused_at_the_offer() -> None:
    async with site(budget_bytes=63) as decoder:
        heard = decoder.admit(BLOCKS)
        assert await refusal(await decoder.offering(BLOCKS, block_bytes=32)) is Refusal.INCOMPATIBLE_LAYOUT
        assert heard.reasons == [Refusal.INCOMPATIBLE_LAYOUT]
        other = decoder.admit(BLOCKS, FOREIGN)
        assert await refusal(await decoder.offering(BLOCKS, request=FOREIGN)) is Refusal.NO_MEMORY
        assert (other.reasons, heard.wanted_blocks, other.wanted_blocks) == ([Refusal.NO_MEMORY], [], [])


async def test_a_refused_sender_that_says_nothing_more_is_let_go_after_a_while() -> None:
    async with site(settings=ReceiverSettings(park_s=0.01, linger_s=0.01)) as decoder:
        call = await decoder.offering(BLOCKS)
        assert (await answer(call)).HasField("refused")
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
