from random import Random

import pytest

from pdd.tracing.span import SpanRecord
from pdd.tracing.tracer import Tracer

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


def tracer(sample: float = 1.0) -> Tracer:
    spans: list[SpanRecord] = []
    return Tracer(Random(1).getrandbits, spans.extend, sample)


def test_a_request_goes_on_in_its_clients_trace_under_the_clients_span() -> None:
    root = tracer().begin(TRACEPARENT)
    assert root is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent_id:016x}") == (TRACE, SPAN)
    assert root.context.span_id not in (0, root.parent_id)


@pytest.mark.parametrize("traceparent", ["", "nonsense"])
def test_without_one_it_begins_a_trace(traceparent: str) -> None:
    traced = tracer()
    one, other = traced.begin(traceparent), traced.begin(traceparent)
    assert one is not None
    assert other is not None
    assert one.parent_id is None
    assert one.context.trace_id != other.context.trace_id


def test_what_the_client_does_not_record_is_not_traced() -> None:
    assert tracer().begin(f"00-{TRACE}-{SPAN}-00") is None


def test_a_share_of_none_traces_nothing() -> None:
    assert tracer(0.0).begin("") is None
    assert tracer(0.0).begin(f"00-{'0' * 31}1-{SPAN}-01") is None


def test_the_trace_id_alone_decides_what_a_share_keeps() -> None:
    ids = [f"{Random(number).getrandbits(128) | 1:032x}" for number in range(400)]
    kept = [trace_id for trace_id in ids if tracer(0.25).begin(f"00-{trace_id}-{SPAN}-01") is not None]
    assert 60 < len(kept) < 140
    assert kept == [trace_id for trace_id in ids if tracer(0.25).begin(f"00-{trace_id}-{'1' * 16}-01") is not None]


def test_an_id_is_never_none() -> None:
    assert Tracer(lambda _bits: 0, lambda _spans: None).new_span_id() != 0
