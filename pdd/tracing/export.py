"""Makes OpenTelemetry's spans of ours, and hands them to the exporters that are configured.

Used by `running` where traces are on; nothing else loads OpenTelemetry's SDK, which takes a while. Its own tracer is not used: a
span has ended when it is made here, and its id was known before, so that other processes could refer to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pdd.rpc.errors import StartupError
from pdd.tracing.file import FileSpanExporter
from pdd.tracing.outlet import Outlet
from pdd.tracing.settings import TraceSettings
from pdd.tracing.span import SpanKind as OurKind
from pdd.tracing.span import SpanRecord

Export = Callable[[Sequence[SpanRecord]], None]

_SCOPE = InstrumentationScope("pdd")
_KINDS = {OurKind.INTERNAL: SpanKind.INTERNAL, OurKind.SERVER: SpanKind.SERVER}


@asynccontextmanager
async def exporting(
    settings: TraceSettings, resource: Mapping[str, str], unix_offset_s: Callable[[], float]
) -> AsyncIterator[Export]:
    """Take spans until the context is left, which exports what is queued. Raises StartupError where the file can't be opened.

    `unix_offset_s` is what has to be added to the loop's time to get the wall clock's, now.
    """
    described = Resource.create(resource)
    outlets = [Outlet(name, exporter) for name, exporter in _exporters(settings)]

    def export(spans: Sequence[SpanRecord]) -> None:
        offset_s = unix_offset_s()  # once, so that spans that meet still do
        for record in spans:
            span = span_of(record, described, offset_s)
            for outlet in outlets:
                outlet.put(span)

    try:
        yield export
    finally:
        for outlet in outlets:
            await outlet.close()


def span_of(record: SpanRecord, resource: Resource, offset_s: float) -> ReadableSpan:
    """Pure; `offset_s` as in `exporting`."""
    return ReadableSpan(
        name=record.name,
        context=_context(record.trace_id, record.span_id),
        parent=None if record.parent_id is None else _context(record.trace_id, record.parent_id),
        resource=resource,
        attributes=record.attributes,
        links=[Link(_context(record.trace_id, span_id)) for span_id in record.links],
        kind=_KINDS[record.kind],
        status=Status() if record.error is None else Status(StatusCode.ERROR, record.error),
        start_time=round((record.start_s + offset_s) * 1e9),
        end_time=round((record.end_s + offset_s) * 1e9),
        instrumentation_scope=_SCOPE,
    )


def _exporters(settings: TraceSettings) -> Iterator[tuple[str, SpanExporter]]:
    if settings.trace_file:
        try:
            yield settings.trace_file, FileSpanExporter(settings.trace_file)
        except OSError as error:
            raise StartupError(f"PDD_TRACE_FILE: {settings.trace_file} can't be opened: {error.strerror}") from error
    if settings.otlp_endpoint:
        if not settings.otlp_endpoint.startswith(("http://", "https://")):
            raise StartupError(f"OTEL_EXPORTER_OTLP_ENDPOINT: {settings.otlp_endpoint} must begin with http:// or https://")
        yield settings.otlp_endpoint, OTLPSpanExporter(settings.otlp_endpoint)


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
