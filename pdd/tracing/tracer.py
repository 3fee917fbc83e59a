"""Begins traces, gives span ids, and takes the spans that have ended.

One for each process that traces; those that do not have None in its place, and no work. Chance and the way out are passed in, so
that a test holds the spans in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdd.tracing.context import TraceContext, parent_of
from pdd.tracing.span import SpanRecord


@dataclass(frozen=True, slots=True)
class Root:
    """Where a request's spans begin."""

    context: TraceContext  # of its root span
    parent_id: int | None  # the client's span


class Tracer:
    def __init__(
        self, random_bits: Callable[[int], int], export: Callable[[Sequence[SpanRecord]], None], sample: float = 1.0
    ) -> None:
        """`export` is called on the event loop, and must return at once and never raise. `sample` is the share of traces kept."""
        self._random_bits = random_bits
        self._sampled_below = round(sample * (1 << 64))
        self.record = export  # spans that have ended, of one request

    def begin(self, traceparent: str) -> Root | None:
        """The root of a request's spans, in the client's trace where it has one; None where it is not to be traced.

        The trace id decides, so that every gateway keeps the same traces. A client that does not record its own is not traced.
        """
        parent = parent_of(traceparent)
        trace_id = self._new_id(128) if parent is None else parent.context.trace_id
        if trace_id % (1 << 64) >= self._sampled_below or (parent is not None and not parent.sampled):
            return None
        return Root(TraceContext(trace_id, self.new_span_id()), None if parent is None else parent.context.span_id)

    def new_span_id(self) -> int:
        return self._new_id(64)

    def _new_id(self, bits: int) -> int:
        return self._random_bits(bits) or 1  # 0 says that there is none
