"""What a sender finds out about its link, over the network in memory and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdd.kv.store import BlockStore
from pdd.transfer.feed import BlockFeed
from pdd.transfer.goodput import LinkMeter
from pdd.transfer.messages import add_push
from pdd.transfer.receiver import Receiver
from pdd.transfer.sender import send
from tests.unit.transfer.parts import FIRST_TOKEN, REQUEST, SALT, Heard, layout, offered, payloads, prompt
from virtual.clock import run
from virtual.network import Network
from wan.link import LinkSettings

MEBIBYTE = 1 << 20
BLOCKS = 64
BYTES_PER_MBIT = 1e6 / 8


@asynccontextmanager
async def transferring(network: Network, meter: LinkMeter) -> AsyncIterator[asyncio.Task[object]]:
    prefill, main = network.host("prefill", "a"), network.host("main", "b")
    feed, server = BlockFeed(), main.new_server()
    store = BlockStore(BLOCKS * MEBIBYTE)
    async with Receiver(layout(MEBIBYTE), store) as receiver, prefill.open_channel("main:1") as channel:
        add_push(server, receiver.push)
        server.add_insecure_port("main:1")
        await server.start()
        receiver.admit(REQUEST, prompt(BLOCKS), SALT, 600.0, Heard())
        feed.append(payloads(BLOCKS, MEBIBYTE))
        feed.complete(FIRST_TOKEN, final=False)
        offer = offered(BLOCKS, MEBIBYTE)
        yield asyncio.create_task(send(channel, offer, feed, on_wanted=lambda *_: None, lease_s=600.0, link=meter))


@pytest.mark.parametrize("rate_mbit", [20.0, 100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("rtt_ms", [1.0, 80.0])
def test_the_goodput_of_a_transfer_is_the_rate_of_the_link(rate_mbit: float, rtt_ms: float) -> None:
    async def measure() -> float | None:
        network, meter = Network(), LinkMeter()
        network.configure("a", "b", LinkSettings(rate_mbit=rate_mbit, rtt_ms=rtt_ms))
        async with transferring(network, meter) as sending:
            await sending
        assert meter.backlog_bytes == 0
        return meter.goodput(asyncio.get_running_loop().time())

    # The credit of a transfer is less than what a fast and long line holds.
    held = min(rate_mbit * BYTES_PER_MBIT, (32 << 20) / (rtt_ms / 1000))
    assert run(measure) == pytest.approx(held, rel=0.25)


def test_a_link_that_falls_to_a_tenth_is_seen_within_a_second() -> None:
    async def measure() -> tuple[float | None, float | None]:
        network, meter, loop = Network(), LinkMeter(), asyncio.get_running_loop()
        network.configure("a", "b", LinkSettings(rate_mbit=100.0, rtt_ms=40.0))
        async with transferring(network, meter) as sending:
            await asyncio.sleep(2.0)
            before = meter.goodput(loop.time())
            network.configure("a", "b", LinkSettings(rate_mbit=10.0, rtt_ms=40.0))
            await asyncio.sleep(1.0)
            after = meter.goodput(loop.time())
            sending.cancel()
            await asyncio.wait((sending,))
        assert (meter.backlog_bytes, meter.transfers) == (0, [])
        return before, after

    before, after = run(measure)
    assert before == pytest.approx(100 * BYTES_PER_MBIT, rel=0.1)
    assert after is not None
    assert after < 25 * BYTES_PER_MBIT
