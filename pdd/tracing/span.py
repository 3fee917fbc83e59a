"""A span that has ended, as data. Made by those who trace, handed to a `Tracer`; times are the event loop's."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = str | int | float | bool


class SpanKind(enum.Enum):
    INTERNAL = "internal"
    SERVER = "server"  # a client's request


@dataclass(frozen=True, slots=True)
class SpanRecord:
    name: str
    trace_id: int
    span_id: int
    parent_id: int | None  # None: the root of its trace
    start_s: float  # the loop's clock
    end_s: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: tuple[int, ...] = ()  # ids of spans of the same trace
    kind: SpanKind = SpanKind.INTERNAL
    error: str | None = None  # why it failed
