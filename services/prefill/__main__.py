"""`python -m services.prefill`: prefill (P), which computes prompts and sends their KV to relay and main."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from services.instances import prefill_instance
from services.prefill.config import PrefillSettings
from services.shell import new_instance, running_engine, serve_until


async def serve_prefill(settings: PrefillSettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    async with (
        running_engine(engine_settings) as engine,
        prefill_instance(
            instance,
            engine,
            settings.kv_budget_bytes,
            cache_bytes=settings.prefix_cache_bytes,
            backlog_bytes=settings.backlog_bytes,
        ) as served,
    ):
        await serve_until(stop, settings, served)


def main() -> None:
    settings, engine_settings = read_settings(PrefillSettings, "prefill"), read_settings(EngineSettings, "prefill")
    run_service(partial(serve_prefill, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
