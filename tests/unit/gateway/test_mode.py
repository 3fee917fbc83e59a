import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mode import DecoderLoad, HandoffMode, Leaning, ModeController, ModePolicy, settled

IDLE = DecoderLoad(running=1, waiting=0, slots=10, kv_used=0.1)
BUSY = DecoderLoad(running=9, waiting=0, slots=10, kv_used=0.4)
MIDDLE = DecoderLoad(running=7, waiting=0, slots=10, kv_used=0.4)
QUEUED = DecoderLoad(running=10, waiting=2, slots=10, kv_used=0.4)


@pytest.mark.parametrize(
    ("reports", "mode"),
    [
        ([(0.0, IDLE)], HandoffMode.CATCH_UP),
        ([(0.0, BUSY)], HandoffMode.ONE_SHOT),
        ([(0.0, BUSY), (5.0, MIDDLE)], HandoffMode.ONE_SHOT),  # between the thresholds nothing changes
        ([(0.0, BUSY), (0.5, IDLE)], HandoffMode.ONE_SHOT),  # too soon to change back
        ([(0.0, BUSY), (1.0, IDLE)], HandoffMode.CATCH_UP),
        ([(0.0, BUSY), (1.0, IDLE), (1.1, QUEUED)], HandoffMode.ONE_SHOT),  # a queue does not wait
    ],
)
def test_mode_follows_pressure_with_hysteresis(reports: list[tuple[float, DecoderLoad]], mode: HandoffMode) -> None:
    controller = ModeController(ModePolicy())
    for now_s, load in reports:
        controller.observe(load, now_s)
    assert controller.mode is mode


@given(st.lists(st.integers(0, 10), min_size=1, max_size=200))
def test_without_a_queue_it_changes_at_most_once_per_dwell(running: list[int]) -> None:
    controller, last_change_s = ModeController(ModePolicy(dwell_s=1.0)), float("-inf")
    for tick, n in enumerate(running):
        before, now_s = controller.mode, tick * 0.1
        if controller.observe(DecoderLoad(n, 0, 10, 0.0), now_s) is not before:
            assert now_s - last_change_s >= 1.0
            last_change_s = now_s


@st.composite
def noisy_loads(draw: st.DrawFn) -> list[tuple[float, DecoderLoad]]:
    """Reports of a relay that is driven up and down: demand and KV memory wander, each report is off by some noise."""
    slots = draw(st.integers(1, 64))
    now_s, reports = 0.0, []
    for _ in range(draw(st.integers(1, 12))):  # phases, each with a demand of its own
        demand, kv_used = draw(st.floats(0.0, 1.5)), draw(st.floats(0.0, 1.0))
        noise = draw(st.floats(0.0, 0.6))
        for off in draw(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=25)):
            now_s += draw(st.sampled_from([0.001, 0.01, 0.05, 0.3, 1.0]))
            wanting = max(0, round((demand + noise * off) * slots))
            reports.append((now_s, DecoderLoad(min(slots, wanting), max(0, wanting - slots), slots, kv_used)))
    return reports


@given(noisy_loads())
def test_a_noisy_load_returns_a_relay_to_catch_up_at_most_once_a_second(reports: list[tuple[float, DecoderLoad]]) -> None:
    controller, returns_s = ModeController(ModePolicy(dwell_s=1.0)), []
    for now_s, load in reports:
        before, after = controller.mode, controller.observe(load, now_s)
        if before is HandoffMode.ONE_SHOT and after is HandoffMode.CATCH_UP:
            returns_s.append(now_s)
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(returns_s))


@given(noisy_loads())
def test_a_relay_with_a_queue_never_keeps_catch_up(reports: list[tuple[float, DecoderLoad]]) -> None:
    controller = ModeController(ModePolicy(dwell_s=1.0))
    for now_s, load in reports:
        controller.observe(load, now_s)
        if load.waiting:
            assert controller.leaning == Leaning(HandoffMode.ONE_SHOT, firm=True)


@pytest.mark.parametrize("queue", [DecoderLoad(10, 1, 10, 0.0), DecoderLoad(2, 1, 10, 0.9)], ids=["for a slot", "for memory"])
def test_a_queue_ends_catch_up_in_the_report_that_tells_of_it(queue: DecoderLoad) -> None:
    controller = ModeController(ModePolicy())
    controller.observe(BUSY, 0.0)
    assert controller.observe(IDLE, 1.0) is HandoffMode.CATCH_UP
    assert controller.observe(queue, 1.001) is HandoffMode.ONE_SHOT


def test_one_that_waits_for_the_next_step_alone_is_no_queue() -> None:
    assert (
        ModeController(ModePolicy()).observe(DecoderLoad(running=1, waiting=1, slots=10, kv_used=0.1), 0.0)
        is HandoffMode.CATCH_UP
    )


@pytest.mark.parametrize(("load", "firm"), [(IDLE, False), (BUSY, False), (QUEUED, True)])
def test_only_a_queue_makes_a_relay_insist(load: DecoderLoad, firm: bool) -> None:
    controller = ModeController(ModePolicy())
    mode = controller.observe(load, 0.0)
    assert controller.leaning == Leaning(mode, firm)


def test_a_queue_that_comes_later_and_goes_is_noticed() -> None:
    controller = ModeController(ModePolicy())
    insisted = []
    for load in (BUSY, QUEUED, BUSY):
        controller.observe(load, 0.0)
        insisted.append(controller.leaning.firm)
    assert insisted == [False, True, False]


@pytest.mark.parametrize(
    ("leaning", "main", "mode"),
    [
        (Leaning(HandoffMode.CATCH_UP, firm=False), IDLE, HandoffMode.CATCH_UP),
        (Leaning(HandoffMode.CATCH_UP, firm=False), BUSY, HandoffMode.CATCH_UP),
        (Leaning(HandoffMode.ONE_SHOT, firm=False), IDLE, HandoffMode.ONE_SHOT),
        (Leaning(HandoffMode.ONE_SHOT, firm=False), None, HandoffMode.ONE_SHOT),
        (Leaning(HandoffMode.ONE_SHOT, firm=False), BUSY, HandoffMode.CATCH_UP),
        (Leaning(HandoffMode.ONE_SHOT, firm=True), BUSY, HandoffMode.ONE_SHOT),
    ],
)
def test_a_busy_main_asks_for_small_bites_and_gets_them_unless_the_relay_insists(
    leaning: Leaning, main: DecoderLoad | None, mode: HandoffMode
) -> None:
    assert settled(leaning, main) is mode


def test_policy_refuses_thresholds_that_cross() -> None:
    with pytest.raises(ValueError, match="resume"):
        ModePolicy(shed=0.5, resume=0.6)


def test_policy_refuses_to_keep_catch_up_with_a_queue() -> None:
    with pytest.raises(ValueError, match="queue"):
        ModePolicy(shed=1.1)
