"""What a transfer leaves behind in its receiver: nothing that its owner has not kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pdd.transfer.feed import BlockFeed
from pdd.transfer.sender import send
from tests.eventually import eventually
from tests.mesh.transfer.site import DEADLINE_S, Site, site
from tests.unit.transfer.parts import FIRST_TOKEN, REQUEST, layout, offered, payloads

MIB = 1 << 20
BLOCKS, BLOCK_BYTES = 32, MIB // 4
PUSH_BYTES = BLOCKS * BLOCK_BYTES
MADE = payloads(BLOCKS, BLOCK_BYTES)


@pytest.fixture
def traced() -> Iterator[None]:
    """gRPC's messages are Python's bytes, and so are counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def held_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


async def push(decoder: Site, attempt: int) -> None:
    request, feed = replace(REQUEST, attempt=attempt), BlockFeed()
    feed.append(MADE)
    feed.complete(FIRST_TOKEN, final=False)
    heard = decoder.admit(BLOCKS, request)
    offer = offered(BLOCKS, BLOCK_BYTES, request)
    await send(decoder.channel, offer, feed, on_wanted=lambda blocks, missing: None, lease_s=DEADLINE_S)
    assert len(heard.received) == 1


@pytest.mark.usefixtures("traced")
async def test_pushes_one_after_the_other_do_not_add_up() -> None:
    async with site(budget_bytes=PUSH_BYTES, of=layout(BLOCK_BYTES)) as decoder:
        await push(decoder, 0)
        decoder.receiver.release(replace(REQUEST, attempt=0))
        before = held_bytes()
        for attempt in range(1, 11):
            await push(decoder, attempt)
            decoder.receiver.release(replace(REQUEST, attempt=attempt))
        # The last call's own frames go when gRPC has ended it, a moment after its sender has heard Committed.
        await eventually(lambda: held_bytes() - before < MIB)


@pytest.mark.usefixtures("traced")
async def test_received_blocks_are_held_once() -> None:
    async with site(budget_bytes=PUSH_BYTES, of=layout(BLOCK_BYTES)) as decoder:
        before = held_bytes()
        await push(decoder, 0)
        assert PUSH_BYTES <= held_bytes() - before < PUSH_BYTES + MIB
        decoder.receiver.release(replace(REQUEST, attempt=0))
        await eventually(lambda: held_bytes() - before < MIB)
