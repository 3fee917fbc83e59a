"""A decoder without its engine is no decoder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pdd.decode.commands import Rules
from pdd.decode.decoder import Decoder
from pdd.engine.base import EngineFault, StepBatch
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from pdd.transfer.receiver import Receiver

MAIN = Rules("main", takes_handoff=True, decodes_on_commit=False, retains_output=True, context_tokens=64)


class BreakingEngine(BatchEngine):
    async def steps(self) -> AsyncIterator[StepBatch]:
        raise EngineFault("the device is gone")
        yield  # makes it a generator


class EndingEngine(BatchEngine):
    async def steps(self) -> AsyncIterator[StepBatch]:
        for _ in ():
            yield StepBatch(1, 0.0)


@pytest.mark.parametrize(("kind", "text"), [(BreakingEngine, "the device is gone"), (EndingEngine, "steps have ended")])
async def test_an_engine_that_breaks_ends_the_decoders_body(kind: type[BatchEngine], text: str) -> None:
    async with kind(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        cache = PrefixCache(BlockStore(1), engine.layout.block_tokens, 0)
        decoder = Decoder(engine, Receiver(engine.layout, cache.store), Instance("main-0", 1), MAIN, cache)
        with pytest.raises(BaseExceptionGroup) as broken:
            async with decoder, asyncio.timeout(10):
                await asyncio.Event().wait()
        assert broken.group_contains(EngineFault, match=text)
