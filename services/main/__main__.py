"""`python -m services.main`: a main decoder (MD), in the site behind the slow link."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from services.instances import main_instance
from services.main.config import MainSettings
from services.shell import new_instance, running_engine, serve_until
from wan.client import lease_forward


async def serve_main(settings: MainSettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    lease_address = partial(lease_forward, settings.wan_control, instance.id) if settings.wan_control else None
    async with (
        running_engine(engine_settings) as engine,
        main_instance(instance, engine, settings.kv_budget_bytes, settings.prefix_cache_bytes) as served,
    ):
        await serve_until(stop, settings, served, lease_address)


def main() -> None:
    settings, engine_settings = read_settings(MainSettings, "main"), read_settings(EngineSettings, "main")
    run_service(partial(serve_main, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
