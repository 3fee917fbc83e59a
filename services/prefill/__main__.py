"""`python -m services.prefill`: prefill (P), which computes prompts and sends their KV to relay and main."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from pdd.tracing.settings import TraceSettings
from services.instances import prefill_instance
from services.metrics.prefill import PrefillMetrics
from services.prefill.config import PrefillSettings
from services.shell import new_instance, running_engine, serve_until, traced


async def serve_prefill(
    settings: PrefillSettings, engine_settings: EngineSettings, trace_settings: TraceSettings, stop: asyncio.Event
) -> None:
    instance, metrics = new_instance(settings), PrefillMetrics()
    async with (
        traced(trace_settings, "prefill", instance) as tracer,
        running_engine(engine_settings) as engine,
        prefill_instance(
            instance,
            engine,
            settings.kv_budget_bytes,
            cache_bytes=settings.prefix_cache_bytes,
            backlog_bytes=settings.backlog_bytes,
            observer=metrics,
            tracer=tracer,
        ) as served,
    ):
        await serve_until(stop, settings, served, metrics)


def main() -> None:
    settings, engine_settings = read_settings(PrefillSettings, "prefill"), read_settings(EngineSettings, "prefill")
    serve = partial(serve_prefill, settings, engine_settings, read_settings(TraceSettings, "prefill"))
    run_service(serve, log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
