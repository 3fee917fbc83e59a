"""`python -m services.prefill`: prefill (P), which computes prompts and sends their KV to relay and main."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.catalog.base import Role
from pdd.engine.config import EngineSettings
from pdd.kv.store import BlockStore
from pdd.rpc.run import read_settings, run_service
from services.prefill.config import PrefillSettings
from services.prefill.servicer import add_prefill
from services.prefill.targets import TargetChannels
from services.prefill.worker import Worker
from services.shell import Served, new_instance, running_engine, serve_until


async def serve_prefill(settings: PrefillSettings, engine_settings: EngineSettings, stop: asyncio.Event) -> None:
    instance = new_instance(settings)
    async with running_engine(engine_settings) as engine, TargetChannels() as channels:
        store = BlockStore(settings.kv_budget_bytes)
        async with Worker(engine, store, channels, instance) as worker:
            served = Served(instance, Role.PREFILL, engine, partial(add_prefill, worker=worker), worker.close)
            await serve_until(stop, settings, served)


def main() -> None:
    settings, engine_settings = read_settings(PrefillSettings, "prefill"), read_settings(EngineSettings, "prefill")
    run_service(partial(serve_prefill, settings, engine_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
