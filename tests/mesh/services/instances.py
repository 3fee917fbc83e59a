"""Prefill, relay and main over sim, served on loopback in the test's own process, with their insides in reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pdd.decode.commands import Rules
from pdd.decode.decoder import Decoder
from pdd.decode.servicer import add_decoder
from pdd.engine.base import Capabilities, Engine
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from pdd.rpc.server import serve
from pdd.sampling import SamplingParams
from pdd.transfer.receiver import Receiver
from services.main.rules import main_rules
from services.prefill.servicer import add_prefill
from services.prefill.targets import TargetChannels
from services.prefill.worker import Worker
from services.relay.rules import relay_rules

BLOCK_TOKENS = 16
FAST = SimConfig()  # steps take no time
PACED = SimConfig(hardware=HARDWARE["cpu-tiny"])  # 10 ms a decode step, 1,500 prompt tokens a second
BUDGET_BLOCKS = 256


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    return [(7 * position + position // 5 + seed) % 1000 for position in range(tokens)]


@asynccontextmanager
async def running_engine(model: SimModel) -> AsyncIterator[Engine]:
    async with BatchEngine(model, StepLimits(), InlineCompute()) as engine:
        yield engine


def is_idle(engine: Engine, cache: PrefixCache) -> bool:
    """Nothing runs, and no block is held but by the cache."""
    load, store = engine.load(), cache.store
    held = (load.running, load.waiting, load.kv_used, store.leased_bytes, store.leases)
    return held == (0, 0, 0, 0, 0) and store.used_bytes == cache.used_bytes


def cache_of(engine: Engine, budget_blocks: int, cache_blocks: int) -> PrefixCache:
    layout = engine.layout
    return PrefixCache(BlockStore(budget_blocks * layout.block_bytes), layout.block_tokens, cache_blocks * layout.block_bytes)


@dataclass(frozen=True, slots=True)
class RunningDecoder:
    instance: Instance
    address: str
    engine: Engine
    cache: PrefixCache
    decoder: Decoder

    @property
    def target(self) -> tuple[Instance, str]:
        return (self.instance, self.address)

    @property
    def store(self) -> BlockStore:
        return self.cache.store

    @property
    def holds_nothing(self) -> bool:
        return is_idle(self.engine, self.cache)


@dataclass(frozen=True, slots=True)
class RunningPrefill:
    address: str
    engine: Engine
    cache: PrefixCache
    worker: Worker

    @property
    def store(self) -> BlockStore:
        return self.cache.store

    @property
    def holds_nothing(self) -> bool:
        return is_idle(self.engine, self.cache)


@asynccontextmanager
async def running_decoder(
    name: str, rules: Callable[[Capabilities], Rules], model: SimModel, budget_blocks: int, cache_blocks: int = 0
) -> AsyncIterator[RunningDecoder]:
    instance = Instance(name, 1)
    async with running_engine(model) as engine:
        cache = cache_of(engine, budget_blocks, cache_blocks)
        async with (
            Receiver(engine.layout, cache.store, cache=cache) as receiver,
            Decoder(engine, receiver, instance, rules(engine.capabilities), cache) as decoder,
            serve("127.0.0.1:0", partial(add_decoder, decoder=decoder, receiver=receiver)) as server,
        ):
            yield RunningDecoder(instance, server.address, engine, cache, decoder)
            decoder.close()


@asynccontextmanager
async def running_main(
    config: SimConfig = FAST, budget_blocks: int = BUDGET_BLOCKS, cache_blocks: int = 0
) -> AsyncIterator[RunningDecoder]:
    async with running_decoder("main-0", main_rules, SimModel(config), budget_blocks, cache_blocks) as running:
        yield running


@asynccontextmanager
async def running_relay(config: SimConfig = FAST, budget_blocks: int = BUDGET_BLOCKS) -> AsyncIterator[RunningDecoder]:
    async with running_decoder("relay-0", relay_rules, SimModel(config), budget_blocks) as running:
        yield running


@asynccontextmanager
async def running_prefill(
    config: SimConfig = FAST,
    budget_blocks: int = BUDGET_BLOCKS,
    kind: type[SimModel] = SimModel,
    cache_blocks: int = 0,
    backlog_bytes: int | None = None,
) -> AsyncIterator[RunningPrefill]:
    async with running_engine(kind(config)) as engine, TargetChannels() as channels:
        cache = cache_of(engine, budget_blocks, cache_blocks)
        async with (
            Worker(engine, cache, channels, Instance("prefill-0", 1), backlog_bytes) as worker,
            serve("127.0.0.1:0", partial(add_prefill, worker=worker)) as server,
        ):
            yield RunningPrefill(server.address, engine, cache, worker)
            worker.close()
