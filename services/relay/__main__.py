"""`python -m services.relay`: a relay decoder (RLD), beside prefill in its site."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.engine.config import EngineSettings
from pdd.rpc.run import read_settings, run_service
from pdd.tracing.settings import TraceSettings
from services.instances import relay_instance
from services.metrics.decoder import DecoderMetrics
from services.relay.config import RelaySettings
from services.shell import new_instance, running_engine, serve_until, traced


async def serve_relay(
    settings: RelaySettings, engine_settings: EngineSettings, trace_settings: TraceSettings, stop: asyncio.Event
) -> None:
    instance, metrics = new_instance(settings), DecoderMetrics()
    async with (
        traced(trace_settings, "relay", instance) as tracer,
        running_engine(engine_settings) as engine,
        relay_instance(instance, engine, settings.kv_budget_bytes, observer=metrics, tracer=tracer) as served,
    ):
        await serve_until(stop, settings, served, metrics)


def main() -> None:
    settings, engine_settings = read_settings(RelaySettings, "relay"), read_settings(EngineSettings, "relay")
    serve = partial(serve_relay, settings, engine_settings, read_settings(TraceSettings, "relay"))
    run_service(serve, log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
