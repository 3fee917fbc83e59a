"""Where a span belongs: a trace, and the span above it. Read from a client's `traceparent`, carried through the mesh as bytes.

Used by the gateway, which begins traces, and by whoever adds spans to one. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import xxhash

TRACEPARENT = "traceparent"  # the HTTP header, and the key in gRPC's metadata

_TRACE_BYTES, _SPAN_BYTES = 16, 8
CONTEXT_BYTES = _TRACE_BYTES + _SPAN_BYTES

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0; within the mesh that of the request's root

    def to_bytes(self) -> bytes:
        """As `Admit.trace` and `StartPrefill.trace`."""
        return self.trace_id.to_bytes(_TRACE_BYTES, "big") + self.span_id.to_bytes(_SPAN_BYTES, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> TraceContext | None:
        """None for no bytes: the request is not traced. Raises ValueError for another number than CONTEXT_BYTES."""
        if not data:
            return None
        if len(data) != CONTEXT_BYTES:
            raise ValueError(f"a trace context has {CONTEXT_BYTES} bytes, got {len(data)}")
        return cls(int.from_bytes(data[:_TRACE_BYTES], "big"), int.from_bytes(data[_TRACE_BYTES:], "big"))

    def stage_id(self, stage: str) -> int:
        """The span id of a stage of this root's request: whoever knows the root can link to a stage before there is one."""
        return xxhash.xxh3_64_intdigest(stage.encode(), seed=self.span_id) or 1


@dataclass(frozen=True, slots=True)
class Parent:
    """A client's own span, around its request."""

    context: TraceContext
    sampled: bool  # the client records its trace


def parent_of(traceparent: str) -> Parent | None:
    """What a W3C `traceparent` says. None where there is none or it is malformed: then the standard wants a new trace."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16))
    if context.trace_id == 0 or context.span_id == 0:
        return None
    return Parent(context, bool(int(flags, 16) & _SAMPLED))
