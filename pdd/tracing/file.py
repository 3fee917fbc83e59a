"""Appends spans to a file, which several processes may share.

Called by OpenTelemetry's batch processor, in its thread. A span is one line and one write to a file opened for appending, so that
lines of different processes never mix. On a file system that can't promise this (NFS), give each process a file of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pdd.telemetry import get_logger
from pdd.tracing.otlp_json import line_of

log = get_logger(__name__)


class FileSpanExporter(SpanExporter):
    def __init__(self, path: str) -> None:
        """Raises OSError where the file can't be opened."""
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            for span in spans:
                self._append(line_of(span))
        except OSError as error:
            if not self._failing:  # a full disk is told once
                log.warning("spans can't be written", file=self._path, why=str(error))
            self._failing = True
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _append(self, line: bytes) -> None:
        whole = b"\n" + line if self._failing else line  # a full disk may have taken a part of the one before
        if os.write(self._file, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._failing = False

    def shutdown(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
