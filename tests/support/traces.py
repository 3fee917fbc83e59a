"""Spans read back from a file that processes have exported to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Exported:
    """A span as the file has it; ids in hex, times in nanoseconds since 1970."""

    service: str
    trace_id: str
    id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    failed: bool

    @property
    def user_visible(self) -> bool:
        return bool(self.attributes.get("pdd.user_visible"))


@dataclass(frozen=True, slots=True)
class Trace:
    spans: Sequence[Exported]

    @property
    def root(self) -> Exported:
        (root,) = self.named("request")
        return root

    @property
    def stages(self) -> list[Exported]:
        return sorted((span for span in self.spans if span.user_visible), key=lambda span: (span.start_ns, span.end_ns))

    def named(self, name: str) -> list[Exported]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Exported:
        (span,) = self.named(name)
        return span

    def with_id(self, span_id: str) -> Exported:
        (span,) = [span for span in self.spans if span.id == span_id]
        return span


def exported(path: Path) -> dict[str, Trace]:
    """What is in the file, by trace id. Each line must be whole."""
    traces: dict[str, list[Exported]] = {}
    for line in path.read_text().splitlines():
        span = _span(json.loads(line))
        traces.setdefault(span.trace_id, []).append(span)
    return {trace_id: Trace(spans) for trace_id, spans in traces.items()}


def _span(line: Mapping[str, Any]) -> Exported:
    (resource,) = line["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    (span,) = scope["spans"]
    return Exported(
        service=_attributes(resource["resource"]["attributes"])["service.name"],
        trace_id=span["traceId"],
        id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        kind=span["kind"],
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span["attributes"]),
        links=tuple(link["spanId"] for link in span.get("links", ())),
        failed=span["status"].get("code") == 2,
    )


def _attributes(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: Mapping[str, Any]) -> object:
    ((kind, content),) = value.items()
    return int(content) if kind == "intValue" else content
