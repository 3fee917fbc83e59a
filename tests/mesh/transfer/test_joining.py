"""Transfers of prompts that begin alike, over real connections: what is cached or under way is not sent again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from pdd.identity import RequestId
from pdd.kv.hashing import chain_hashes
from pdd.transfer.base import Refusal
from pdd.transfer.feed import BlockFeed
from pdd.transfer.outbound import OfferedKv, TransferReport
from pdd.transfer.receiver import ReceiverSettings
from pdd.transfer.sender import SenderSettings, send
from tests.eventually import eventually
from tests.mesh.transfer.site import DEADLINE_S, Call, Site, answer, outcome, refusal, site
from tests.unit.transfer.parts import (
    BLOCK_TOKENS,
    FIRST_TOKEN,
    FOREIGN,
    PREFILL,
    REQUEST,
    SALT,
    Heard,
    cancel,
    commit,
    damaged,
    frame,
    layout,
    payloads,
)

MADE = payloads(8)
MIB = 1 << 20
THIRD = RequestId(0xA, 3, 1)


async def pending(call: Call) -> RequestId:
    """The transfer that the next answer tells to wait for."""
    reply = await answer(call)
    assert reply.WhichOneof("kind") == "pending", reply
    return RequestId.from_proto(reply.pending.transfer)


async def wanted_from(call: Call) -> int:
    """The first block of the Want that follows, sooner or later."""
    reply = await answer(call)
    while reply.HasField("pending"):
        reply = await answer(call)
    assert reply.WhichOneof("kind") == "want", reply
    return reply.want.first_block


async def sent(call: Call, first_block: int, end_block: int, request: RequestId, wanted: int | None = None) -> None:
    """The rest of a transfer, to its commit. `wanted` is the first block that it was to send, where that was sent before."""
    await call.write(frame(MADE[first_block:end_block], first_block, request))
    await call.write(commit(MADE[first_block if wanted is None else wanted : end_block], request))
    assert (await outcome(call)).HasField("committed")


async def two_under_way(decoder: Site) -> tuple[Call, Call, Heard]:
    """One transfer of four blocks, two of which have come; another of six that waits for it."""
    decoder.admit(4)
    heard = decoder.admit(6, FOREIGN)
    first = await decoder.wanted(4)
    await first.write(frame(MADE[:2]))
    assert (await answer(first)).HasField("credit")
    second = await decoder.offering(6, request=FOREIGN)
    assert await pending(second) == REQUEST
    assert heard.wanted_blocks == []
    return first, second, heard


async def test_a_transfer_that_waited_wants_only_what_the_other_did_not_bring() -> None:
    async with site(cache_bytes=MIB) as decoder:
        first, second, heard = await two_under_way(decoder)
        await sent(first, 2, 4, REQUEST, wanted=0)
        assert await wanted_from(second) == 4
        assert heard.wanted_blocks == [(2, 32)]
        await sent(second, 4, 6, FOREIGN)
        assert [bytes(payload) for payload in heard.received[0].payloads] == MADE[:6]


@pytest.mark.parametrize("end", ["cancel", "half-closed", "lost", "cancelled here", "outdated"])
async def test_what_was_verified_of_a_transfer_that_ended_badly_is_not_sent_again(end: str) -> None:
    async with site(cache_bytes=MIB) as decoder:
        first, second, heard = await two_under_way(decoder)
        match end:
            case "cancel":
                await first.write(cancel())
            case "half-closed":
                await first.done_writing()
            case "lost":
                first.cancel()
            case "cancelled here":
                decoder.receiver.cancel(REQUEST)
            case _:
                decoder.admit(4, RequestId(REQUEST.gateway, REQUEST.counter, REQUEST.attempt + 1))
        assert await wanted_from(second) == 2
        await sent(second, 2, 6, FOREIGN)
        assert [bytes(payload) for payload in heard.received[0].payloads] == MADE[:6]


async def test_nothing_of_a_sender_that_was_refused_is_used_for_others() -> None:
    async with site(cache_bytes=MIB) as decoder:
        first, second, heard = await two_under_way(decoder)
        await first.write(damaged(frame(MADE[2:4], 2)))
        assert await refusal(first) is Refusal.CHECKSUM_MISMATCH
        assert await wanted_from(second) == 0
        await sent(second, 0, 6, FOREIGN)
        assert [bytes(payload) for payload in heard.received[0].payloads] == MADE[:6]


async def test_a_transfer_that_waits_does_not_outlive_its_lease_as_long_as_the_other_lives() -> None:
    async with site(cache_bytes=MIB) as decoder:
        decoder.admit(4)
        heard = decoder.admit(6, FOREIGN, lease_s=0.6)
        first = await decoder.wanted(4)
        second = await decoder.offering(6, request=FOREIGN)
        for _ in range(5):  # one every third of the lease
            await pending(second)
        await sent(first, 0, 4, REQUEST)
        assert await wanted_from(second) == 4
        assert heard.failures == []


async def test_a_joined_transfer_that_falls_silent_ends_with_its_lease_and_the_other_goes_on() -> None:
    async with site(cache_bytes=MIB) as decoder:
        decoder.admit(4, lease_s=0.6)
        heard = decoder.admit(6, FOREIGN, lease_s=0.6)
        await decoder.wanted(4)
        second = await decoder.offering(6, request=FOREIGN)
        assert await wanted_from(second) == 0
        assert heard.failures == []


@pytest.mark.parametrize("whose", ["the sender's", "the gateway's", "the line's"])
async def test_a_transfer_can_be_cancelled_while_it_waits(whose: str) -> None:
    async with site(cache_bytes=MIB) as decoder:
        first, second, heard = await two_under_way(decoder)
        held = decoder.store.leased_bytes
        match whose:
            case "the sender's":
                await second.write(cancel(FOREIGN))
                assert (await answer(second)).HasField("cancelled")
                assert heard.reasons == [Refusal.CANCELLED_ATTEMPT]
            case "the gateway's":
                decoder.receiver.cancel(FOREIGN)
                assert await refusal(second) is Refusal.CANCELLED_ATTEMPT
            case _:
                second.cancel()
                await eventually(lambda: heard.reasons == [None])
        assert decoder.store.leased_bytes == held
        await sent(first, 2, 4, REQUEST, wanted=0)


async def test_a_frame_without_a_want_is_out_of_turn_though_others_bring_the_block() -> None:
    async with site(cache_bytes=MIB) as decoder:
        _, second, _ = await two_under_way(decoder)
        await second.write(frame(MADE[:1], 0, FOREIGN))
        assert await refusal(second) is Refusal.OUT_OF_TURN


async def test_one_that_waits_for_one_that_waits_gets_its_turn() -> None:
    async with site(cache_bytes=MIB) as decoder:
        first, second, _ = await two_under_way(decoder)
        heard = decoder.admit(7, THIRD)
        third = await decoder.offering(7, request=THIRD)
        assert await pending(third) == FOREIGN
        second.cancel()
        assert await pending(third) == REQUEST
        await sent(first, 2, 4, REQUEST, wanted=0)
        assert await wanted_from(third) == 4
        await sent(third, 4, 7, THIRD)
        assert [bytes(payload) for payload in heard.received[0].payloads] == MADE[:7]


async def test_a_relay_waits_for_nobody_and_keeps_nothing() -> None:
    async with site() as decoder:
        decoder.admit(4)
        decoder.admit(6, FOREIGN)
        first = await decoder.wanted(4)
        second = await decoder.offering(6, request=FOREIGN)
        assert await wanted_from(second) == 0
        await sent(first, 0, 4, REQUEST)
        decoder.receiver.release(REQUEST)
        assert decoder.cached(4) == 0


async def test_an_old_transfer_that_is_replayed_is_refused_though_all_its_blocks_are_cached() -> None:
    async with site(cache_bytes=MIB) as decoder:
        heard = decoder.admit(4)
        await sent(await decoder.wanted(4), 0, 4, REQUEST)
        decoder.receiver.release(REQUEST)
        assert decoder.cached(4) == 4
        assert await refusal(await decoder.offering(4)) is Refusal.OUT_OF_TURN
        assert (len(heard.received), decoder.store.leased_bytes) == (1, 0)


async def test_memory_of_a_cancelled_transfer_goes_to_others_and_its_late_frames_nowhere() -> None:
    """The cancelled one's verified blocks stay cached until the others need the room."""
    async with site(budget_bytes=6 * 16, cache_bytes=6 * 16) as decoder:
        decoder.admit(4)
        first = await decoder.wanted(4)
        await first.write(frame(MADE[:2]))
        assert (await answer(first)).HasField("credit")
        decoder.receiver.cancel(REQUEST)
        assert (decoder.store.leased_bytes, decoder.cached(4)) == (0, 2)
        for number in range(5):
            request, ids = RequestId(0xB, number + 1), tuple(range(1000 * number, 1000 * number + 6 * BLOCK_TOKENS))
            heard, own = Heard(), [bytes([number + 1, index] * 8) for index in range(6)]
            decoder.receiver.admit(request, ids, SALT, 60.0, heard)
            await first.write(frame(MADE[2:3], 2))  # refused already, and passed over
            report = await Sent(request, ids, own).to(decoder)
            assert report.blocks == 6
            assert [bytes(payload) for payload in heard.received[0].payloads] == own
            decoder.receiver.release(request)
        assert await refusal(first) is Refusal.CANCELLED_ATTEMPT


# ── with our own sender ──


@dataclass
class Sent:
    """A transfer by our own sender, all of it made already."""

    request: RequestId
    ids: tuple[int, ...]
    made: list[bytes]
    wanted: list[tuple[int, int]] = field(default_factory=list)

    async def to(self, decoder: Site, settings: SenderSettings | None = None) -> TransferReport:
        feed = BlockFeed()
        feed.append(self.made)
        feed.complete(FIRST_TOKEN, final=False)
        offer = OfferedKv(self.request, PREFILL, layout(), len(self.ids), chain_hashes(self.ids, BLOCK_TOKENS, SALT))

        def on_wanted(blocks: int, missing_bytes: int) -> None:
            self.wanted.append((blocks, missing_bytes))

        return await send(decoder.channel, offer, feed, on_wanted=on_wanted, lease_s=DEADLINE_S, settings=settings)


def sharing(number: int, shared: int, own: int) -> Sent:
    """A prompt of `shared` blocks that all have, and `own` blocks that no other has."""
    ids = tuple(range(shared * BLOCK_TOKENS)) + tuple(1000 * (number + 1) + i for i in range(own * BLOCK_TOKENS))
    made = [bytes([0, index] * 8) for index in range(shared)] + [bytes([number + 1, index] * 8) for index in range(own)]
    return Sent(RequestId(0xC, number + 1), ids, made)


@pytest.mark.parametrize("transfers", [2, 8])
async def test_no_block_crosses_twice_while_it_is_cached_or_under_way(transfers: int) -> None:
    shared, own = 40, 5
    async with site(cache_bytes=MIB) as decoder:
        heard = [Heard() for _ in range(transfers)]
        sending = [sharing(number, shared, own) for number in range(transfers)]
        for one, hearing in zip(sending, heard, strict=True):
            decoder.receiver.admit(one.request, one.ids, SALT, 60.0, hearing)
        reports = await asyncio.gather(*(one.to(decoder) for one in sending))
        assert sum(report.blocks for report in reports) == shared + transfers * own
        for one, hearing in zip(sending, heard, strict=True):
            assert [bytes(payload) for payload in hearing.received[0].payloads] == one.made
            decoder.receiver.release(one.request)
        again = Sent(RequestId(0xD, 1), sending[-1].ids, sending[-1].made)
        decoder.receiver.admit(again.request, again.ids, SALT, 60.0, Heard())
        assert ((await again.to(decoder)).blocks, again.wanted) == (0, [(0, 0)])


async def test_a_sender_is_patient_as_long_as_it_is_told_to_wait() -> None:
    settings = ReceiverSettings(sweep_s=0.01, pending_s=0.02)
    async with site(cache_bytes=MIB, settings=settings) as decoder:
        decoder.admit(4)
        first = await decoder.wanted(4)
        late = Sent(FOREIGN, tuple(range(100, 119)), MADE[:4])
        decoder.receiver.admit(FOREIGN, late.ids, SALT, 60.0, Heard())
        running = asyncio.create_task(late.to(decoder, SenderSettings(offer_s=0.5)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), 1.0)  # twice its patience
        await sent(first, 0, 4, REQUEST)
        assert (await running).blocks == 0
