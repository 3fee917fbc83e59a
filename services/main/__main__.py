"""`python -m services.main`: a main decoder (MD), in the site behind the slow link."""

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
from services.main.config import MainSettings
from services.main.rules import main_rules
from services.shell import Served, new_instance, running_engine, serve_until
from wan.client import lease_forward


async def serve_main(settings: MainSettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    lease_address = partial(lease_forward, settings.wan_control, instance.id) if settings.wan_control else None
    async with running_engine(engine_settings) as engine:
        store = BlockStore(settings.kv_budget_bytes)
        async with (
            Receiver(engine.layout, store) as receiver,
            Decoder(engine, receiver, instance, main_rules(engine.capabilities)) as decoder,
        ):
            register = partial(add_decoder, decoder=decoder, receiver=receiver)
            await serve_until(stop, settings, Served(instance, Role.MAIN, engine, register, decoder.close), lease_address)


def main() -> None:
    settings, engine_settings = read_settings(MainSettings, "main"), read_settings(EngineSettings, "main")
    run_service(partial(serve_main, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
