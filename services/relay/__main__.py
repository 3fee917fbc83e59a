"""`python -m services.relay`: a relay decoder (RLD), beside prefill in its site."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from services.instances import relay_instance
from services.relay.config import RelaySettings
from services.shell import new_instance, running_engine, serve_until


async def serve_relay(settings: RelaySettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    async with (
        running_engine(engine_settings) as engine,
        relay_instance(instance, engine, settings.kv_budget_bytes) as served,
    ):
        await serve_until(stop, settings, served)


def main() -> None:
    settings, engine_settings = read_settings(RelaySettings, "relay"), read_settings(EngineSettings, "relay")
    run_service(partial(serve_relay, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
