"""A span as OTLP's JSON: a whole `TracesData` in one line, so that each line of a file stands for itself.

Used by the file exporter. Field names and encodings are OTLP's: ids in hex, 64-bit numbers as strings. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanKind, StatusCode

_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5}
_STATUS_ERROR = 2


def line_of(span: ReadableSpan) -> bytes:
    """With its line's end."""
    scope = span.instrumentation_scope
    spans = {"scope": {"name": "" if scope is None else scope.name}, "spans": [_span(span)]}
    resource = {"attributes": _attributes(span.resource.attributes)}
    return orjson.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [spans]}]}) + b"\n"


def _span(span: ReadableSpan) -> dict[str, object]:
    context = span.get_span_context()
    assert context is not None
    encoded: dict[str, object] = {
        "traceId": _trace_id(context.trace_id),
        "spanId": _span_id(context.span_id),
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "status": _status(span),
    }
    if span.parent is not None:
        encoded["parentSpanId"] = _span_id(span.parent.span_id)
    if span.links:
        encoded["links"] = [_link(link) for link in span.links]
    return encoded


def _status(span: ReadableSpan) -> dict[str, object]:
    if span.status.status_code is not StatusCode.ERROR:
        return {}
    return {"code": _STATUS_ERROR, "message": span.status.description or ""}


def _link(link: Link) -> dict[str, object]:
    return {"traceId": _trace_id(link.context.trace_id), "spanId": _span_id(link.context.span_id)}


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, object]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: object) -> dict[str, object]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case Sequence():  # of a resource, as a person may set it
            return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}


def _trace_id(number: int) -> str:
    return f"{number:032x}"


def _span_id(number: int) -> str:
    return f"{number:016x}"
