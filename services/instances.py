"""An engine made into an instance of the mesh: the same three parts whether a process or a virtual mesh hosts them.

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
from pdd.decode.servicer import add_decoder
from pdd.engine.base import Capabilities, Engine
from pdd.identity import Instance
from pdd.kv.store import BlockStore
from pdd.rpc.channel import OpenChannel, open_channel
from pdd.transfer.receiver import Receiver
from services.main.rules import main_rules
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
async def relay_instance(instance: Instance, engine: Engine, kv_budget_bytes: int) -> AsyncIterator[Served]:
    async with _decoder(instance, engine, kv_budget_bytes, Role.RELAY, relay_rules) as served:
        yield served


@asynccontextmanager
async def main_instance(instance: Instance, engine: Engine, kv_budget_bytes: int) -> AsyncIterator[Served]:
    async with _decoder(instance, engine, kv_budget_bytes, Role.MAIN, main_rules) as served:
        yield served


@asynccontextmanager
async def prefill_instance(
    instance: Instance, engine: Engine, kv_budget_bytes: int, dial: OpenChannel = open_channel
) -> AsyncIterator[Served]:
    """`dial` opens the channels that KV goes over."""
    store = BlockStore(kv_budget_bytes)
    async with TargetChannels(dial) as channels, Worker(engine, store, channels, instance) as worker:
        yield Served(instance, Role.PREFILL, engine, store, partial(add_prefill, worker=worker), worker.close)


@asynccontextmanager
async def _decoder(
    instance: Instance, engine: Engine, kv_budget_bytes: int, role: Role, rules: Callable[[Capabilities], Rules]
) -> AsyncIterator[Served]:
    store = BlockStore(kv_budget_bytes)
    async with (
        Receiver(engine.layout, store) as receiver,
        Decoder(engine, receiver, instance, rules(engine.capabilities)) as decoder,
    ):
        yield Served(instance, role, engine, store, partial(add_decoder, decoder=decoder, receiver=receiver), decoder.close)
