"""How a handoff goes: One-Shot, Catch-Up with its rounds, `auto`, and a change of mind in mid-course."""

from dataclasses import replace

import pytest

from gateway.handoff.actions import Action, Finish, StopRelay, ThrottleRelay
from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.events import Extended, Finished, KvReady, Lost, MainLoad, Stopped
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.mode import DecoderLoad, HandoffMode, Leaning

from .script import (
    CATCH_UP,
    CPU,
    DONE,
    FIRST,
    MD,
    ONE_SHOT,
    RLD,
    STOP,
    P,
    aborts,
    emit,
    extend,
    leaning,
    relayed,
    run,
    tokens,
)

IDLE_MAIN = MainLoad(DecoderLoad(running=0, waiting=0, slots=8, kv_used=0.0))
FULL_MAIN = MainLoad(DecoderLoad(running=6, waiting=2, slots=8, kv_used=0.0))
BUSY_MAIN = MainLoad(DecoderLoad(running=7, waiting=0, slots=8, kv_used=0.0))


def test_catch_up_sends_what_there_is_less_the_last_id_and_then_what_came_since() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39)])
    assert run(machine, [KvReady(MD)]) == [ThrottleRelay(0.018), extend(0, 39, then_decode=False)]
    assert run(machine, [tokens(RLD, 40, 20)]) == [emit(RLD, 40, 20)]
    assert run(machine, [Extended(MD, 39, 39, 0.35)], now_s=0.4) == [extend(39, 59, then_decode=False)]
    assert run(machine, [tokens(RLD, 60, 3)]) == [emit(RLD, 60, 3)]
    assert run(machine, [Extended(MD, 59, 20, 0.18)], now_s=0.6) == [StopRelay()]  # 4 ids fit the inter-token target
    assert run(machine, [tokens(RLD, 63), Stopped(RLD, 64)]) == [emit(RLD, 63), extend(59, 64, then_decode=True)]
    assert machine.handoff is CATCH_UP


def test_catch_up_with_little_to_send_is_one_shot() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 3)])
    assert run(machine, [KvReady(MD), Stopped(RLD, 4)]) == [StopRelay(), extend(0, 4, then_decode=True)]
    assert machine.handoff is ONE_SHOT


def test_catch_up_stops_after_its_rounds() -> None:
    machine = HandoffMachine(Pipeline.RELAY, Leaning(CATCH_UP), HandoffPolicy(max_rounds=2, prior=CPU.prior))
    run(machine, [FIRST, tokens(RLD, 1, 99), KvReady(MD), tokens(RLD, 100, 60), Extended(MD, 99, 99, 0.9)])
    run(machine, [tokens(RLD, 160, 40)])
    assert run(machine, [Extended(MD, 159, 60, 0.54)]) == [StopRelay()]


def test_catch_up_measures_main_and_gives_up_where_the_relay_outruns_it() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD), tokens(RLD, 40, 30)])
    assert run(machine, [Extended(MD, 39, 39, 3.9)], now_s=4.0) == [StopRelay()]  # 100 ms a token


def test_catch_up_counts_the_prompts_tail_as_computed() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 19), KvReady(MD), tokens(RLD, 20, 9)])
    # 0.14 s for 19 ids alone would be 7 ms each and the rest too much; for 19 ids and 15 of the prompt it is 4 ms each.
    assert run(machine, [Extended(MD, 19, 34, 0.14)]) == [StopRelay()]


def test_mode_change_turns_a_running_catch_up_into_one_shot_at_once() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD)])
    assert run(machine, [leaning(ONE_SHOT)]) == [StopRelay()]
    # Main has not answered the round yet: the rest queues behind it, and the late answer changes nothing.
    assert run(machine, [Stopped(RLD, 40)]) == [extend(39, 40, then_decode=True)]
    assert run(machine, [Extended(MD, 39, 39, 0.4), Extended(MD, 40, 1, 0.01), tokens(MD, 40)]) == [emit(MD, 40)]
    assert machine.handoff is ONE_SHOT


@pytest.mark.parametrize(
    ("late", "actions"), [(ONE_SHOT, [StopRelay()]), (CATCH_UP, [ThrottleRelay(0.018), extend(0, 39, then_decode=False)])]
)
def test_mode_of_the_moment_in_which_the_kv_is_ready_counts(late: HandoffMode, actions: list[Action]) -> None:
    machine = relayed(CATCH_UP if late is ONE_SHOT else ONE_SHOT)
    run(machine, [FIRST, tokens(RLD, 1, 39), leaning(late)])
    assert run(machine, [KvReady(MD)]) == actions


def test_mode_change_does_not_disturb_a_stop_under_way() -> None:
    machine = relayed(ONE_SHOT)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD)])
    assert run(machine, [leaning(CATCH_UP), leaning(ONE_SHOT)]) == []


@pytest.mark.parametrize(
    ("main", "firm", "first"),
    [
        (IDLE_MAIN, False, StopRelay),  # nobody there to stall
        (BUSY_MAIN, False, ThrottleRelay),  # small bites, for the sake of main's other users
        (BUSY_MAIN, True, StopRelay),  # requests wait for the relay, or it was configured so
    ],
)
def test_a_busy_main_gets_small_bites_unless_requests_wait_for_the_relay(main: MainLoad, firm: bool, first: type[Action]) -> None:
    machine = relayed(ONE_SHOT, firm=firm)
    run(machine, [FIRST, tokens(RLD, 1, 39), main])
    assert isinstance(run(machine, [KvReady(MD)])[0], first)


def test_a_queue_at_the_relay_ends_the_small_bites() -> None:
    machine = relayed(ONE_SHOT, firm=False)
    run(machine, [FIRST, tokens(RLD, 1, 39), BUSY_MAIN, KvReady(MD)])
    assert run(machine, [leaning(ONE_SHOT, firm=False)]) == []
    assert run(machine, [leaning(ONE_SHOT)]) == [StopRelay()]


def test_a_busy_main_that_takes_everything_in_one_unfelt_step_gets_it() -> None:
    machine = relayed(ONE_SHOT, firm=False)
    run(machine, [FIRST, tokens(RLD, 1, 4), BUSY_MAIN])
    assert run(machine, [KvReady(MD)]) == [StopRelay()]  # 5 ids of 9 ms


@pytest.mark.parametrize(("came", "hands_over"), [(18, True), (25, False)])
def test_ids_are_charged_with_what_they_add_to_mains_step(came: int, hands_over: bool) -> None:
    machine = relayed(CATCH_UP)
    load = DecoderLoad(running=2, waiting=0, slots=8, kv_used=0.0, step_s=0.03)
    run(machine, [FIRST, tokens(RLD, 1, 59), MainLoad(load), KvReady(MD), tokens(RLD, 60, came)])
    # The pass of 59 took 1 ms an id longer than a step without them, so 20 more ids make a step of 50 ms.
    assert (run(machine, [Extended(MD, 59, 59, 0.03 + 0.059)]) == [StopRelay()]) is hands_over


def test_a_scored_handoff_scores_every_extend() -> None:
    machine = relayed(CATCH_UP, score=True)
    run(machine, [FIRST, tokens(RLD, 1, 39)])
    assert run(machine, [KvReady(MD)])[-1] == replace(extend(0, 39, then_decode=False), score=True)
    last = run(machine, [Extended(MD, 39, 39, 0.35, 38, 38), Stopped(RLD, 40)])
    assert last == [StopRelay(), replace(extend(39, 40, then_decode=True), score=True)]


def test_an_answer_without_a_relay_is_not_scored() -> None:
    machine = HandoffMachine(Pipeline.DIRECT, Leaning(ONE_SHOT), CPU, score=True)
    assert run(machine, [FIRST])[-1] == extend(0, 1, then_decode=True)


@pytest.mark.parametrize("mode", HandoffMode)
def test_a_relay_goes_on_while_main_has_no_slot(mode: HandoffMode) -> None:
    machine = relayed(mode)
    assert run(machine, [FIRST, tokens(RLD, 1, 39), FULL_MAIN, KvReady(MD), FULL_MAIN, leaning(mode), tokens(RLD, 40)]) == [
        emit(P, 0),
        emit(RLD, 1, 39),
        emit(RLD, 40),
    ]
    first = run(machine, [BUSY_MAIN])
    assert first == ([StopRelay()] if mode is ONE_SHOT else [ThrottleRelay(0.018), extend(0, 40, then_decode=False)])
    assert run(machine, [FULL_MAIN, IDLE_MAIN]) == []


def test_a_slot_that_is_free_before_index_0_is_here_is_used() -> None:
    assert run(relayed(), [FULL_MAIN, KvReady(MD), IDLE_MAIN, FIRST]) == [emit(P, 0), StopRelay()]


def test_a_relay_that_finishes_before_main_has_a_slot_makes_the_whole_answer() -> None:
    machine = relayed()
    run(machine, [FIRST, FULL_MAIN, KvReady(MD)])
    assert run(machine, [tokens(RLD, 1), Finished(RLD, STOP, 2)]) == [emit(RLD, 1), *aborts(DONE, P, MD), Finish(STOP)]
    assert machine.handoff is None


def test_a_main_that_is_lost_in_a_catch_up_leaves_the_relay_at_its_own_pace() -> None:
    machine = relayed(CATCH_UP)
    run(machine, [FIRST, tokens(RLD, 1, 39), KvReady(MD)])
    assert run(machine, [Lost(MD, "gone"), leaning(ONE_SHOT), tokens(RLD, 40)]) == [ThrottleRelay(0.0), emit(RLD, 40)]
    assert run(machine, [Finished(RLD, STOP, 41)]) == [*aborts(DONE, P), Finish(STOP)]
