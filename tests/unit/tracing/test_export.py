"""Spans on their way out: to a file, to a collector, and where there is none."""

from __future__ import annotations

import resource
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pdd.identity import Instance
from pdd.rpc.errors import StartupError
from pdd.tracing.export import span_of
from pdd.tracing.file import FileSpanExporter
from pdd.tracing.outlet import Outlet
from pdd.tracing.running import running_tracer
from pdd.tracing.settings import TraceSettings
from pdd.tracing.span import SpanKind, SpanRecord
from pdd.tracing.tracer import Tracer
from tests.eventually import eventually
from tests.support.traces import exported

INSTANCE = Instance("relay-0", 0xABC)
ROOT = SpanRecord("request", 7, 1, None, 10.0, 12.5, {"pdd.plan": "x=1", "pdd.tokens": 3}, kind=SpanKind.SERVER)
CHILD = SpanRecord("transfer.main", 7, 2, 1, 10.5, 11.0, {"pdd.used": True, "pdd.ms": 0.5}, links=(1,), error="lost")


@asynccontextmanager
async def running(settings: TraceSettings, unix_offset_s: float = 1.8e9) -> AsyncIterator[Tracer | None]:
    async with running_tracer(
        settings, "relay", INSTANCE, random_bits=lambda bits: bits, unix_offset_s=lambda: unix_offset_s
    ) as tracer:
        yield tracer


def readable(number: int) -> ReadableSpan:
    return span_of(SpanRecord("relay", 7, number, None, 0.0, 1.0), Resource({"service.name": "relay"}), 0.0)


async def test_without_a_way_out_there_is_no_tracer() -> None:
    async with running(TraceSettings()) as tracer:
        assert tracer is None


async def test_a_file_has_a_line_for_each_span_as_otlp_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    async with running(TraceSettings(trace_file=str(path))) as tracer:
        assert tracer is not None
        tracer.record((ROOT, CHILD))
    trace = exported(path)[f"{7:032x}"]
    root, child = trace.root, trace.one("transfer.main")
    assert (root.service, root.id, root.parent_id, root.kind, root.failed) == ("relay", f"{1:016x}", "", 2, False)
    assert (child.parent_id, child.links, child.kind, child.failed) == (root.id, (root.id,), 1, True)
    assert (root.attributes, child.attributes) == (ROOT.attributes, CHILD.attributes)
    assert root.end_ns - root.start_ns == 2_500_000_000


@pytest.fixture
def small_disk() -> Iterator[int]:
    """The length in bytes beyond which no file of this process grows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_was_full_spoils_no_line_that_is_written_later(tmp_path: Path, small_disk: int) -> None:
    path = tmp_path / "spans.jsonl"
    exporter = FileSpanExporter(str(path))
    assert exporter.export([readable(number) for number in range(1, 10)]) is SpanExportResult.FAILURE
    assert path.stat().st_size == small_disk  # with a part of a line at its end
    resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    assert exporter.export([readable(10), readable(11)]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    spans = [orjson.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in path.read_bytes().splitlines()[-2:]]
    assert [int(span["spanId"], 16) for span in spans] == [10, 11]


def test_spans_that_meet_on_the_loops_clock_meet_in_the_export() -> None:
    offset_s, resource = 1_796_142_302.047906, Resource({})
    spans = [span_of(SpanRecord("x", 1, 1, None, at_s, at_s + 0.1), resource, offset_s) for at_s in (5.0, 5.0 + 0.1)]
    assert spans[0].end_time == spans[1].start_time


def test_processes_that_share_a_file_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    exporters = [FileSpanExporter(str(path)) for _ in range(4)]
    writers = [
        threading.Thread(target=exporter.export, args=([readable(number) for number in range(1, 201)],)) for exporter in exporters
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(exported(path)[f"{7:032x}"].spans) == 800


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (TraceSettings(trace_file="/nowhere/spans.jsonl"), "PDD_TRACE_FILE"),
        (TraceSettings(otlp_endpoint="collector:4317"), "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
async def test_a_way_out_that_cannot_be_is_named_at_the_start(settings: TraceSettings, named: str) -> None:
    with pytest.raises(StartupError, match=named):
        async with running(settings):
            pass


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []

    async def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any) -> object:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_a_collector_gets_them_over_grpc() -> None:
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with running(TraceSettings(otlp_endpoint=f"http://127.0.0.1:{port}")) as tracer:
        assert tracer is not None
        tracer.record((ROOT, CHILD))
    await server.stop(None)
    (request,) = collector.requests
    (resource,) = request.resource_spans
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes}["service.instance.id"] == str(INSTANCE)
    assert [span.name for span in resource.scope_spans[0].spans] == ["request", "transfer.main"]


class Stuck(SpanExporter):
    """Exports nothing until it is shut down."""

    def __init__(self) -> None:
        self.entered, self._shut_down = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self._shut_down.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._shut_down.set()


async def test_an_exporter_that_hangs_costs_spans_and_nothing_else() -> None:
    stuck = Stuck()
    outlet = Outlet("a collector", stuck, queued_spans=4)
    for number in range(1, 5):  # a full batch, which wakes the exporter
        outlet.put(readable(number))
    await eventually(stuck.entered.is_set)
    for number in range(5, 15):
        outlet.put(readable(number))
    assert outlet.dropped == 6  # 4 are being exported, and 4 are queued
    await outlet.close(within_s=0.01)
