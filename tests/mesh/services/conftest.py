from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from pdd.engine.sim.model import SimConfig
from tests.eventually import eventually
from tests.mesh.services.gateways import DecodeStream, PrefillStream, attached_decoder, attached_prefill
from tests.mesh.services.instances import (
    BUDGET_BLOCKS,
    FAST,
    PACED,
    RunningDecoder,
    RunningPrefill,
    running_main,
    running_prefill,
    running_relay,
)

CACHE_BLOCKS = BUDGET_BLOCKS // 2


@dataclass(frozen=True, slots=True)
class Site:
    """One instance of each role and one gateway attached to all of them."""

    prefill: RunningPrefill
    relay: RunningDecoder
    main: RunningDecoder
    to_prefill: PrefillStream
    to_relay: DecodeStream
    to_main: DecodeStream

    async def until_free(self) -> None:
        """Until nothing is held anywhere. Raises TimeoutError."""
        await eventually(lambda: all(held.holds_nothing for held in (self.prefill, self.relay, self.main)))


@asynccontextmanager
async def running_site(near: SimConfig, far: SimConfig) -> AsyncIterator[Site]:
    """Prefill and relay on one kind of device, main on another; prefill and main keep prefix caches."""
    async with (
        running_prefill(near, cache_blocks=CACHE_BLOCKS) as prefill,
        running_relay(near) as relay,
        running_main(far, cache_blocks=CACHE_BLOCKS) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(relay.address) as to_relay,
        attached_decoder(main.address) as to_main,
    ):
        yield Site(prefill, relay, main, to_prefill, to_relay, to_main)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Steps take no time."""
    async with running_site(FAST, FAST) as built:
        yield built


@pytest.fixture
async def paced() -> AsyncIterator[Site]:
    """Steps take their time, so that there is something to interrupt."""
    async with running_site(PACED, PACED) as built:
        yield built
