"""Prefill's channels to its targets: kept while of use, and no longer."""

from __future__ import annotations

import pytest

from pdd.transfer.base import Refusal, TransferLost, TransferRefused
from services.prefill.targets import TargetChannels
from tests.eventually import eventually

HERE, THERE = "127.0.0.1:9", "127.0.0.1:19"  # never connected: a channel connects with its first call


async def test_transfers_to_one_address_share_a_channel() -> None:
    async with TargetChannels() as channels:
        async with channels.use(HERE) as first, channels.use(HERE) as second, channels.use(THERE) as other:
            assert first is second
            assert first is not other
        async with channels.use(HERE) as later:
            assert later is first
        assert len(channels) == 2


async def test_an_idle_channel_is_closed() -> None:
    async with TargetChannels(idle_s=0.01) as channels:
        async with channels.use(HERE):
            pass
        await eventually(lambda: len(channels) == 0)


async def test_a_channel_in_use_is_not_idle() -> None:
    async with TargetChannels(idle_s=0.01) as channels, channels.use(HERE) as used:
        async with channels.use(THERE):
            pass
        await eventually(lambda: len(channels) == 1)
        async with channels.use(HERE) as same:
            assert same is used


async def lose(channels: TargetChannels) -> None:
    async with channels.use(HERE):
        raise TransferLost("the peer was restarted")


async def refuse(channels: TargetChannels) -> None:
    async with channels.use(HERE):
        raise TransferRefused(Refusal.NO_MEMORY, "full")


async def test_a_channel_whose_peer_was_lost_is_not_used_again() -> None:
    async with TargetChannels() as channels, channels.use(HERE) as before:
        with pytest.raises(TransferLost):
            await lose(channels)
        async with channels.use(HERE) as after:
            assert after is not before


async def test_a_refusal_says_nothing_against_the_channel() -> None:
    async with TargetChannels() as channels:
        async with channels.use(HERE) as before:
            with pytest.raises(TransferRefused):
                await refuse(channels)
        async with channels.use(HERE) as after:
            assert after is before
