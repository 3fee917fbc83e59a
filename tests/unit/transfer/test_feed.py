from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pdd.engine.base import Payload
from pdd.transfer.feed import BlockFeed, FeedEnd
from tests.unit.transfer.parts import payloads

MADE = payloads(6)


async def read_all(feed: BlockFeed, limit: int, pause: asyncio.Event | None = None) -> list[Payload]:
    """A reader with a place of its own; with `pause` it looks only when that is set."""
    changed, taken = asyncio.Event(), list[Payload]()
    with feed.watch(changed):
        while True:
            if pause is not None:
                await pause.wait()
            await changed.wait()
            changed.clear()
            while blocks := feed.blocks(len(taken), limit):
                taken.extend(blocks)
            if feed.end is not None or feed.error is not None:
                return taken


async def test_every_reader_gets_every_block_in_order_whenever_it_comes() -> None:
    feed = BlockFeed()
    early = asyncio.create_task(read_all(feed, limit=2))
    await asyncio.sleep(0)
    feed.append(MADE[:1])
    await asyncio.sleep(0)
    late = asyncio.create_task(read_all(feed, limit=100))
    feed.append(MADE[1:4])
    await asyncio.sleep(0)
    feed.append(MADE[4:])
    feed.complete(7, final=False)
    async with asyncio.timeout(5):
        assert await early == await late == await read_all(feed, limit=1) == MADE
    assert feed.end == FeedEnd(7, False)


async def test_a_slow_reader_holds_back_neither_the_feed_nor_a_fast_one() -> None:
    feed, go = BlockFeed(), asyncio.Event()
    slow = asyncio.create_task(read_all(feed, limit=1, pause=go))
    fast = asyncio.create_task(read_all(feed, limit=1))
    await asyncio.sleep(0)
    feed.append(MADE)
    feed.complete(7, final=True)
    async with asyncio.timeout(5):
        assert await fast == MADE
        assert not slow.done()
        go.set()
        assert await slow == MADE


async def test_a_failure_reaches_a_waiting_reader_and_what_came_before_stays() -> None:
    feed = BlockFeed()
    reader = asyncio.create_task(read_all(feed, limit=1))
    await asyncio.sleep(0)
    feed.append(MADE[:2])
    feed.fail(RuntimeError("engine"))
    async with asyncio.timeout(5):
        assert await reader == MADE[:2]
    assert isinstance(feed.error, RuntimeError)


async def test_a_reader_that_has_left_is_not_woken() -> None:
    feed, changed = BlockFeed(), asyncio.Event()
    with feed.watch(changed):
        changed.clear()
    feed.append(MADE)
    assert not changed.is_set()


@pytest.mark.parametrize(("first", "limit", "expected"), [(0, 2, MADE[:2]), (5, 9, MADE[5:]), (6, 1, []), (0, 0, [])])
def test_blocks_are_those_that_are_there(first: int, limit: int, expected: Sequence[Payload]) -> None:
    feed = BlockFeed()
    feed.append(MADE)
    assert feed.blocks(first, limit) == expected
    assert len(feed) == 6


def test_nothing_is_added_after_the_end() -> None:
    feed = BlockFeed()
    feed.complete(7, final=False)
    with pytest.raises(ValueError, match="the feed has ended"):
        feed.append(MADE)
    with pytest.raises(ValueError, match="the feed has ended"):
        feed.complete(8, final=False)
    feed.fail(RuntimeError("too late to matter"))
    assert (feed.error, feed.end) == (None, FeedEnd(7, False))
