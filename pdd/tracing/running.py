"""A process's tracer, from its start to its end. Called by the entry points, which bring chance and the wall clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pdd.identity import Instance
from pdd.tracing.settings import TraceSettings
from pdd.tracing.tracer import Tracer


@asynccontextmanager
async def running_tracer(
    settings: TraceSettings,
    service: str,
    instance: Instance,
    *,
    random_bits: Callable[[int], int],
    unix_offset_s: Callable[[], float],
) -> AsyncIterator[Tracer | None]:
    """A tracer, or None where the settings name no way out. `service` is the role. Raises StartupError.

    `unix_offset_s` is the wall clock's time now less the loop's. Not by `loop.time()`, which is as old as the loop's turn.
    """
    if not settings.on:
        yield None
        return
    from pdd.tracing.export import exporting  # only here: a process that does not trace loads nothing of it

    resource = {
        "service.namespace": "pdd",
        "service.name": service,
        "service.instance.id": str(instance),
    }
    async with exporting(settings, resource, unix_offset_s) as export:
        yield Tracer(random_bits, export, settings.trace_sample)
