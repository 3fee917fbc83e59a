"""The gateway's spans of a request, made from what the mesh has noted of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clients import ClientLeft
from gateway.generation import MeshError, MeshErrorCode, Moments, Run, Timeline
from gateway.traces import RequestTrace, Stage, spans, stages
from pdd.tracing.context import TraceContext
from pdd.tracing.span import SpanKind, SpanRecord
from pdd.tracing.tracer import Root, Tracer

ARRIVED_S, END_S = 100.0, 103.0
ROOT = Root(TraceContext(7, 8), 9)


def moments(pipeline: str, *, relay: Run | None = None, main: Run | None = None, finished: bool = True) -> Moments:
    timeline = Timeline(pipeline)
    return Moments("r-1.0", 100.1, timeline, first_token_s=100.5, relay=relay, main=main, finished=finished)


RELAY, MAIN = Run(100.6, 101.5, 20), Run(101.7, 102.9, 30)
WHOLE = moments("relay", relay=RELAY, main=MAIN)


def named(noted: Moments | None) -> list[tuple[str, float, float]]:
    return [(stage.name, stage.start_s, stage.end_s) for stage in stages(noted, ARRIVED_S, END_S)]


def test_the_stages_of_a_relay_request() -> None:
    assert named(WHOLE) == [
        ("route", 100.0, 100.1),
        ("prefill", 100.1, 100.5),
        ("relay", 100.5, 101.5),
        ("switch", 101.5, 101.7),
        ("main", 101.7, 102.9),
        ("finish", 102.9, 103.0),
    ]


@pytest.mark.parametrize(
    ("noted", "names"),
    [
        (moments("direct", main=MAIN), ["route", "prefill", "main", "finish"]),
        (moments("direct", relay=RELAY, main=MAIN), ["route", "prefill", "relay", "switch", "main", "finish"]),
        (moments("singular", relay=RELAY), ["route", "prefill", "relay", "finish"]),
        (moments("relay"), ["route", "prefill", "finish"]),
    ],
    ids=["direct", "direct with a relay that joined", "singular", "ended at index 0"],
)
def test_a_stage_that_does_not_happen_is_left_out(noted: Moments, names: list[str]) -> None:
    assert [stage.name for stage in stages(noted, ARRIVED_S, END_S)] == names


def test_tokens_and_the_wait_for_the_first_belong_to_their_stage() -> None:
    found = {stage.name: stage for stage in stages(WHOLE, ARRIVED_S, END_S)}
    assert found["relay"].tokens == 20
    assert found["relay"].wait_s == pytest.approx(0.1)
    assert (found["main"].tokens, found["main"].wait_s) == (30, 0.0)
    assert found["switch"].wait_s is None


@pytest.mark.parametrize(
    ("noted", "last"),
    [
        (None, ("route", 100.0, 103.0)),
        (Moments("r-1.0", 100.1, Timeline("relay")), ("prefill", 100.1, 103.0)),
        (moments("relay", finished=False), ("relay", 100.5, 103.0)),
        (moments("direct", finished=False), ("main", 100.5, 103.0)),
        (moments("relay", relay=RELAY, finished=False), ("relay", 100.5, 103.0)),
        (moments("relay", relay=RELAY, main=MAIN, finished=False), ("main", 101.7, 103.0)),
    ],
    ids=["no plan", "no first token", "no relay token", "no main token", "in relay", "in main"],
)
def test_a_request_that_is_broken_off_ends_in_the_stage_that_it_was_in(
    noted: Moments | None, last: tuple[str, float, float]
) -> None:
    assert named(noted)[-1] == last


TIMES = st.floats(90.0, 110.0)
RUNS = st.none() | st.builds(Run, TIMES, TIMES, st.integers(1, 9))


@given(TIMES, st.none() | TIMES, RUNS, RUNS, st.booleans(), st.sampled_from(["relay", "direct", "singular"]))
def test_the_stages_are_the_whole_request_whatever_was_noted(
    started_s: float, first_token_s: float | None, relay: Run | None, main: Run | None, finished: bool, pipeline: str
) -> None:
    noted = Moments(
        "r-1.0", started_s, Timeline(pipeline), first_token_s=first_token_s, relay=relay, main=main, finished=finished
    )
    found = list(stages(noted, ARRIVED_S, END_S))
    assert (found[0].start_s, found[-1].end_s) == (ARRIVED_S, END_S)
    assert all(before.end_s == after.start_s for before, after in pairwise(found))
    assert all(stage.start_s <= stage.end_s for stage in found)
    assert len({stage.name for stage in found}) == len(found)


def test_the_root_is_a_server_span_under_the_clients_and_over_its_stages() -> None:
    request, stage = spans(ROOT, (Stage("route", ARRIVED_S, END_S),), {"pdd.label": "x"}, None)
    assert (request.name, request.trace_id, request.span_id, request.parent_id) == ("request", 7, 8, 9)
    assert (request.kind, request.start_s, request.end_s) == (SpanKind.SERVER, ARRIVED_S, END_S)
    assert (stage.trace_id, stage.parent_id, stage.span_id) == (7, 8, ROOT.context.stage_id("route"))
    assert stage.attributes["pdd.user_visible"] is True


@pytest.mark.parametrize(
    ("error", "outcome", "told"),
    [
        (MeshError(MeshErrorCode.NO_INSTANCE, "no relay"), "no_instance", "no_instance: no relay"),
        (asyncio.CancelledError(), "broken_off", None),
        (ClientLeft("cut off"), "broken_off", None),
        (ValueError("of ours"), "broken_off", "ValueError('of ours')"),
    ],
)
async def test_a_request_without_a_plan_is_traced_with_what_became_of_it(
    error: BaseException, outcome: str, told: str | None
) -> None:
    recorded: list[SpanRecord] = []
    tracer = Tracer(lambda _bits: 1, recorded.extend)
    with pytest.raises(type(error)), RequestTrace(tracer, ROOT, "label", 12, asyncio.get_running_loop().time()):
        raise error
    request, route = recorded
    assert (request.attributes["pdd.outcome"], request.error) == (outcome, told)
    assert (request.attributes["pdd.label"], request.attributes["pdd.prompt_tokens"]) == ("label", 12)
    assert (route.name, route.error) == ("route", None)
