"""Ends: stops, aborts, faults, and what was in flight."""

from __future__ import annotations

from dataclasses import replace

from pdd.engine.base import Aborted, EngineFault, Failed, Finished, FinishReason, Stopped
from tests.unit.engine.schedule.steps import EOS, GREEDY, decoding, results, run, scheduler, shape


def test_stop_in_flight_lets_the_token_through_and_comes_after_it() -> None:
    engine = scheduler()
    decoding(engine, 1)
    step = engine.plan(0.0)
    assert step is not None
    engine.stop(1)
    batch = engine.complete(results(step), 0.0)
    assert ([out.index for out in batch.tokens], batch.events) == ([2], (Stopped(1, 3),))
    assert engine.plan(0.0) is None


def test_stop_counts_ids_that_were_given_and_not_computed_yet() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    engine.extend(1, 0, [1, 2], then_decode=True)
    engine.stop(1)
    assert run(engine)[1].events == (Stopped(1, 2),)


def test_finishing_beats_a_stop_of_the_same_step() -> None:
    engine = scheduler()
    decoding(engine, 1)
    step = engine.plan(0.0)
    assert step is not None
    engine.stop(1)
    assert engine.complete(results(step, EOS), 0.0).events == (Finished(1, FinishReason.STOP, 2),)


def test_abort_in_flight_drops_the_results_and_keeps_the_slot_until_then() -> None:
    engine = scheduler(slots=1)
    decoding(engine, 1)
    step = engine.plan(0.0)
    assert step is not None
    engine.abort(1)
    engine.prefill(2, range(4), GREEDY, None, 0.0)
    assert engine.load().running == 1
    batch = engine.complete(results(step), 0.0)
    assert (batch.tokens, batch.events) == ((), (Aborted(1),))
    assert shape(run(engine)[0]) == [(2, 4)]


def test_an_abort_after_a_failure_in_flight_gives_one_closing_event() -> None:
    engine = scheduler()
    decoding(engine, 1)
    step = engine.plan(0.0)
    assert step is not None
    engine.extend(1, 9, [1], then_decode=True)
    engine.abort(1)
    (event,) = engine.complete(results(step), 0.0).events
    assert isinstance(event, Failed)


def test_a_fault_ends_its_sequence_and_no_other() -> None:
    engine = scheduler()
    decoding(engine, 1)
    decoding(engine, 2)
    step = engine.plan(0.0)
    assert step is not None
    fault = EngineFault("broken")
    batch = engine.complete(replace(results(step), faults={1: fault}), 0.0)
    assert batch.events == (Failed(1, fault),)
    assert [out.seq for out in batch.tokens] == [2]
