import pytest

from gateway.generation import Run, Timeline
from gateway.handoff.actions import Action, Emit, Extend, Finish
from gateway.handoff.events import Extended, FirstToken, HandoffEvent, KvReady, TransferDone, Wanted
from gateway.mode import HandoffMode
from gateway.timeline import TimelineRecorder
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason

P, RLD, MD = Role.PREFILL, Role.RELAY, Role.MAIN
INSTANCES = {P: "p", RLD: "r", MD: "m"}
ARRIVED_S = 100.0


def recorded(*noted: tuple[float, HandoffEvent | Action], pipeline: str = "relay") -> TimelineRecorder:
    """A recorder that was told each of these, so long after the request's arrival."""
    recorder = TimelineRecorder(pipeline, INSTANCES, ARRIVED_S)
    for after_s, what in noted:
        if isinstance(what, Emit | Extend | Finish):
            recorder.note_action(what, ARRIVED_S + after_s)
        else:
            assert not isinstance(what, Action)
            recorder.note_event(what, ARRIVED_S + after_s)
    return recorder


def rounded(timeline: Timeline) -> list[tuple[str, str, float, float, int, int]]:
    return [(s.name, s.instance, round(s.start_s, 6), round(s.end_s, 6), s.tokens, s.bytes) for s in timeline.spans]


def test_timeline_of_a_catch_up() -> None:
    recorder = recorded(
        (0.5, FirstToken(9, computed_tokens=70, compute_s=0.4)),
        (0.5, Emit(0, (9,), P)),
        (0.51, Wanted(MD, 4, 4096)),
        (0.52, TransferDone(RLD, 4, 4096, 0.02)),
        (0.6, Emit(1, (1, 2), RLD)),
        (0.9, Emit(3, (3, 4), RLD)),
        (1.0, TransferDone(MD, 4, 4096, 0.5)),
        (1.0, KvReady(MD)),
        (1.0, Extend(0, (9, 1, 2, 3), then_decode=False)),
        (1.2, Extended(MD, 4, 10, 0.15, 3, 3)),
        (1.25, Emit(5, (5,), RLD)),
        (1.3, Extend(4, (4, 5), then_decode=True)),
        (1.4, Extended(MD, 6, 2, 0.05, 2, 1)),
        (1.4, Emit(6, (6,), MD)),
        (2.0, Emit(7, (7, 8), MD)),
    )
    timeline = recorder.timeline(HandoffMode.CATCH_UP)
    assert rounded(timeline) == [
        ("prefill", "p", 0.1, 0.5, 70, 0),
        ("transfer.relay", "r", 0.5, 0.52, 0, 4096),
        ("transfer.main", "m", 0.5, 1.0, 0, 4096),
        ("relay", "r", 0.6, 1.25, 5, 0),
        ("extend", "m", 1.0, 1.2, 4, 0),
        ("extend", "m", 1.3, 1.4, 2, 0),
        ("main", "m", 1.4, 2.0, 3, 0),
    ]
    assert timeline.switch_gap_s == pytest.approx(0.15)
    assert timeline.user_gap_s == timeline.switch_gap_s  # nothing was held back
    assert recorder.timeline(HandoffMode.CATCH_UP, user_gap_s=0.03).user_gap_s == 0.03
    assert (timeline.scored_tokens, timeline.agreed_tokens) == (5, 4)
    assert (timeline.pipeline, timeline.handoff) == ("relay", "catch_up")
    assert (timeline.eager_tokens, timeline.main_computed_tokens, timeline.wan_kv_bytes) == (6, 12, 4096)


def test_an_answer_that_the_relay_finished_has_no_switch() -> None:
    timeline = recorded(
        (0.1, FirstToken(9)), (0.1, Emit(0, (9,), P)), (0.2, Emit(1, (1, 2), RLD)), (0.1, Wanted(MD, 4, 4096))
    ).timeline(None, user_gap_s=0.1)  # main was about to take over
    assert (timeline.handoff, timeline.switch_gap_s, timeline.user_gap_s) == ("", 0.0, 0.0)
    assert (timeline.eager_tokens, timeline.wan_kv_bytes) == (3, 0)


def test_an_extend_sent_ahead_starts_when_the_kv_is_there() -> None:
    recorder = recorded(
        (0.1, Extend(0, (9,), then_decode=True)),
        (0.8, KvReady(MD)),
        (0.9, Extended(MD, 1, 5, 0.1)),
        pipeline="direct",
    )
    assert rounded(recorder.timeline(None)) == [("extend", "m", 0.8, 0.9, 1, 0)]


def test_bytes_are_those_main_lacked_where_prefills_report_is_late() -> None:
    assert recorded((0.1, Wanted(MD, 4, 4096)), (0.2, KvReady(MD))).timeline(None).wan_kv_bytes == 4096


def test_a_span_never_starts_before_the_request() -> None:
    timeline = recorded((0.1, FirstToken(9, compute_s=0.3))).timeline(None)
    assert rounded(timeline) == [("prefill", "p", 0.0, 0.1, 0, 0)]


def test_moments_are_the_clocks_and_grow_with_the_request() -> None:
    recorder = recorded((0.5, FirstToken(9, cached_tokens=16)), (0.5, Emit(0, (9,), P)), (0.6, Emit(1, (1, 2), RLD)))
    moments = recorder.moments("r-1.0", recorder.timeline(None))
    assert (moments.request, moments.started_s, moments.first_token_s) == ("r-1.0", ARRIVED_S, ARRIVED_S + 0.5)
    assert (moments.relay, moments.main, moments.finished) == (Run(ARRIVED_S + 0.6, ARRIVED_S + 0.6, 2), None, False)
    assert (moments.cached_tokens, moments.output_tokens) == (16, 3)
    recorder.note_action(Emit(3, (3,), MD), ARRIVED_S + 0.9)
    recorder.note_action(Finish(FinishReason.LENGTH), ARRIVED_S + 1.0)
    moments = recorder.moments("r-1.0", recorder.timeline(None))
    assert (moments.main, moments.finished) == (Run(ARRIVED_S + 0.9, ARRIVED_S + 0.9, 1), True)
