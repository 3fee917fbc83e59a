"""`python -m services.main`: a main decoder (MD), in the site behind the slow link."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from pdd.tracing.settings import TraceSettings
from services.instances import main_instance
from services.main.config import MainSettings
from services.metrics.decoder import DecoderMetrics
from services.shell import new_instance, running_engine, serve_until, traced
from wan.client import lease_forward


async def serve_main(
    settings: MainSettings, engine_settings: EngineSettings, trace_settings: TraceSettings, stop: asyncio.Event
) -> None:
    instance, metrics = new_instance(settings), DecoderMetrics()
    lease_address = partial(lease_forward, settings.wan_control, instance.id) if settings.wan_control else None
    async with (
        traced(trace_settings, "main", instance) as tracer,
        running_engine(engine_settings) as engine,
        main_instance(
            instance, engine, settings.kv_budget_bytes, settings.prefix_cache_bytes, observer=metrics, tracer=tracer
        ) as served,
    ):
        await serve_until(stop, settings, served, metrics, lease_address)


def main() -> None:
    settings, engine_settings = read_settings(MainSettings, "main"), read_settings(EngineSettings, "main")
    serve = partial(serve_main, settings, engine_settings, read_settings(TraceSettings, "main"))
    run_service(serve, log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
