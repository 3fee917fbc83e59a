"""One way out for spans: a bounded queue before an exporter, emptied by a thread of OpenTelemetry's.

Made by `export`, one for each exporter, so that a collector that does not answer holds no file up. The event loop only ever
appends; what finds the queue full is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from pdd.telemetry import get_logger

log = get_logger(__name__)

QUEUED_SPANS = 4096  # that may wait for the exporter
_BATCH_SPANS = 512
_DELAY_MS = 1000  # a batch leaves after that at the latest
CLOSE_S = 2.0  # for what is queued at the end


class Outlet:
    def __init__(self, name: str, exporter: SpanExporter, queued_spans: int = QUEUED_SPANS) -> None:
        """`name` is for the log."""
        self.dropped = 0
        self._name = name
        self._bound = queued_spans
        self._given = 0
        self._counting = _Counting(exporter)
        self._processor = BatchSpanProcessor(
            self._counting,
            max_queue_size=queued_spans,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=min(_BATCH_SPANS, queued_spans),
        )

    def put(self, span: ReadableSpan) -> None:
        if self._given - self._counting.taken >= self._bound:
            if not self.dropped:
                log.warning("spans are dropped", to=self._name, queued=self._bound)
            self.dropped += 1
            return
        self._given += 1
        self._processor.on_end(span)

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Export what is queued, as far as it goes within that time."""
        loop = asyncio.get_running_loop()
        closing = loop.run_in_executor(None, self._processor.shutdown)
        await asyncio.wait((closing,), timeout=within_s)
        if not closing.done():
            self._counting.give_up()
            await closing
        lost = self.dropped + self._given - self._counting.exported
        if lost:
            log.warning("spans were lost", to=self._name, lost=lost, dropped=self.dropped)


class _Counting(SpanExporter):
    """Counts what passes. Used in the processor's thread; the loop reads the counters."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.taken = 0  # out of the queue
        self.exported = 0
        self._exporter = exporter
        self._given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        if self._given_up:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        return result

    def give_up(self) -> None:
        self._given_up = True
        self._exporter.shutdown()  # ends an export that is under way

    def shutdown(self) -> None:
        if not self._given_up:
            self._exporter.shutdown()
