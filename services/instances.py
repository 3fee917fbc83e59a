"""An engine made into an instance of the mesh: the same parts whether a process or a virtual mesh hosts them.

Called by the entry points and by `virtual.mesh`. Owns what stands between an engine and its servicers, and lets go of it on
leaving; knows no registry, address or server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc.aio

from pdd.catalog.base import Registration, Role
from pdd.decode.commands import Rules
from pdd.decode.decoder import Decoder
from pdd.decode.observer import DecoderObserver
from pdd.decode.servicer import add_decoder
from pdd.engine.base import Capabilities, Engine
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from pdd.rpc.channel import OpenChannel, open_channel
from pdd.tracing.tracer import Tracer
from pdd.transfer.receiver import Receiver
from services.main.rules import main_rules
from services.prefill.observer import PrefillObserver
from services.prefill.servicer import add_prefill
from services.prefill.targets import TargetChannels
from services.prefill.worker import Worker
from services.relay.rules import relay_rules


@dataclass(frozen=True, slots=True)
class Served:
    """What an instance offers."""

    instance: Instance
    role: Role
    engine: Engine
    store: BlockStore
    cache: PrefixCache
    host: Worker | Decoder
    register: Callable[[grpc.aio.Server], Sequence[str]]  # adds servicers, returns full service names
    close: Callable[[], None]  # ends its streams

    def registration(self, site: str, address: str) -> Registration:
        """What the registry is told of it, with the load of the moment."""
        load = self.engine.load()
        return Registration(
            instance=self.instance,
            role=self.role,
            site=site,
            address=address,
            layout=self.engine.layout,
            context_tokens=self.engine.capabilities.context_tokens,
            slots=load.slots,
            load=(load.running + load.waiting) / load.slots,
        )


@asynccontextmanager
async def relay_instance(
    instance: Instance,
    engine: Engine,
    kv_budget_bytes: int,
    *,
    observer: DecoderObserver | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Served]:
    """A relay keeps no prefix cache."""
    cache = _cache(engine, kv_budget_bytes, 0)
    async with _decoder(instance, engine, cache, Role.RELAY, relay_rules, observer, tracer) as served:
        yield served


@asynccontextmanager
async def main_instance(
    instance: Instance,
    engine: Engine,
    kv_budget_bytes: int,
    cache_bytes: int = 0,
    *,
    observer: DecoderObserver | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Served]:
    """`cache_bytes` of the budget may be held by the prefix cache, here as for prefill."""
    cache = _cache(engine, kv_budget_bytes, cache_bytes)
    async with _decoder(instance, engine, cache, Role.MAIN, main_rules, observer, tracer) as served:
        yield served


@asynccontextmanager
async def prefill_instance(
    instance: Instance,
    engine: Engine,
    kv_budget_bytes: int,
    dial: OpenChannel = open_channel,
    *,
    cache_bytes: int = 0,
    backlog_bytes: int | None = None,
    observer: PrefillObserver | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Served]:
    """`dial` opens the channels that KV goes over; `backlog_bytes` bounds what may wait for one target."""
    cache = _cache(engine, kv_budget_bytes, cache_bytes)
    async with (
        TargetChannels(dial) as channels,
        Worker(engine, cache, channels, instance, backlog_bytes, observer, tracer) as worker,
    ):
        register = partial(add_prefill, worker=worker)
        yield Served(instance, Role.PREFILL, engine, cache.store, cache, worker, register, worker.close)


def _cache(engine: Engine, kv_budget_bytes: int, cache_bytes: int) -> PrefixCache:
    return PrefixCache(BlockStore(kv_budget_bytes), engine.layout.block_tokens, cache_bytes)


@asynccontextmanager
async def _decoder(
    instance: Instance,
    engine: Engine,
    cache: PrefixCache,
    role: Role,
    rules: Callable[[Capabilities], Rules],
    observer: DecoderObserver | None,
    tracer: Tracer | None,
) -> AsyncIterator[Served]:
    async with (
        Receiver(engine.layout, cache.store, cache=cache, observer=observer) as receiver,
        Decoder(engine, receiver, instance, rules(engine.capabilities), cache, observer, tracer) as decoder,
    ):
        register = partial(add_decoder, decoder=decoder, receiver=receiver)
        yield Served(instance, role, engine, cache.store, cache, decoder, register, decoder.close)
