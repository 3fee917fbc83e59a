"""`python -m services.relay`: a relay decoder (RLD), beside prefill in its site."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.catalog.base import Role
from pdd.decode.decoder import Decoder
from pdd.decode.servicer import add_decoder
from pdd.engine.config import EngineSettings
from pdd.kv.store import BlockStore
from pdd.rpc.run import read_settings, run_service
from pdd.transfer.receiver import Receiver
from services.relay.config import RelaySettings
from services.relay.rules import relay_rules
from services.shell import Served, new_instance, running_engine, serve_until


async def serve_relay(settings: RelaySettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    async with running_engine(engine_settings) as engine:
        store = BlockStore(settings.kv_budget_bytes)
        async with (
            Receiver(engine.layout, store) as receiver,
            Decoder(engine, receiver, instance, relay_rules(engine.capabilities)) as decoder,
        ):
            register = partial(add_decoder, decoder=decoder, receiver=receiver)
            await serve_until(stop, settings, Served(instance, Role.RELAY, engine, register, decoder.close))


def main() -> None:
    settings, engine_settings = read_settings(RelaySettings, "relay"), read_settings(EngineSettings, "relay")
    run_service(partial(serve_relay, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
