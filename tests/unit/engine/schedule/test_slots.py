"""Slots, waiting, throttles and load."""

from __future__ import annotations

from tests.unit.engine.schedule.steps import GREEDY, decoding, run, scheduler, shape


def test_nothing_to_do_plans_nothing() -> None:
    idle = scheduler()
    assert idle.plan(0.0) is None
    assert idle.next_due_s() is None


def test_a_slot_is_cleared_when_it_is_taken_and_only_then() -> None:
    engine = scheduler(slots=1)
    decoding(engine, 1)
    assert not run(engine)[0].works[0].clear
    engine.stop(1)
    engine.prefill(2, range(40), GREEDY, None, 0.0)
    assert [run(engine)[0].works[0].clear for _ in range(2)] == [True, False]


def test_throttle_spaces_tokens_by_the_start_of_their_steps() -> None:
    engine = scheduler()
    decoding(engine, 1)
    engine.throttle(1, 0.1)
    assert (engine.plan(0.05), engine.next_due_s()) == (None, 0.1)
    run(engine, now_s=0.1, takes_s=0.07)
    assert engine.plan(0.19) is None
    engine.throttle(1, 0.05)
    assert shape(run(engine, now_s=0.19)[0]) == [(1, 1)]


def test_waiting_sequences_get_slots_first_in_first_out() -> None:
    engine = scheduler(slots=1)
    for seq in (1, 2, 3):
        engine.prefill(seq, range(4), GREEDY, None, 0.0)
    engine.abort(2)
    assert [shape(run(engine)[0]) for _ in range(2)] == [[(1, 4)], [(3, 4)]]


def test_load_counts_what_runs_waits_and_is_to_be_computed() -> None:
    engine = scheduler(slots=1)
    engine.prefill(1, range(70), GREEDY, None, 0.0)
    engine.prefill(2, range(10), GREEDY, None, 0.0)
    run(engine, takes_s=0.2)
    load = engine.load()
    assert (load.running, load.waiting, load.slots, load.queued_tokens) == (1, 1, 1, 48)
    assert (load.kv_used, load.step_s) == (32 / 256, 0.2)
