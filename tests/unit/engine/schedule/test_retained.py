"""What a sequence leaves for a prefix cache, and when its end is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.engine.base import Aborted, EngineFault, Extended, Finished, FinishReason, KvSource, Retained, Stopped
from pdd.engine.schedule import Scheduler
from tests.unit.engine.schedule.steps import EOS, GREEDY, results, run, scheduler, shape

PROMPT = tuple(range(20))
KNOWN = tuple(range(100, 115))  # with the prompt 35 tokens: 2 full blocks, one of them the prompt's


def retaining(engine: Scheduler, max_tokens: int = 50) -> None:
    """Bring sequence 1 to where it decodes from output index 16 on."""
    engine.open(1, PROMPT, replace(GREEDY, max_tokens=max_tokens), KvSource((b"",)), 0.0, retain=True)
    engine.extend(1, 0, KNOWN, then_decode=True)


def finished(engine: Scheduler) -> None:
    """And to where it has finished and not left."""
    retaining(engine)
    run(engine)
    batch = run(engine, token=EOS)[1]
    assert batch.events == ()


RETAINED = Retained(1, (*PROMPT, *KNOWN[:12]), 1, (b"block",))


def test_blocks_come_in_a_step_without_rows_right_before_the_end() -> None:
    engine = scheduler()
    finished(engine)
    step, batch = run(engine)
    assert [(work.rows, work.blocks) for work in step.works] == [((), (1, 2))]
    assert batch.events == (RETAINED, Finished(1, FinishReason.STOP, 16))
    assert engine.plan(0.0) is None


def test_the_last_token_is_told_a_step_before_the_end() -> None:
    engine = scheduler()
    retaining(engine, max_tokens=16)
    batch = run(engine)[1]
    assert ([out.index for out in batch.tokens], batch.events) == ([15], (Extended(1, 15, 19, 0.0),))
    assert run(engine)[1].events == (RETAINED, Finished(1, FinishReason.LENGTH, 16))


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_stopped_sequence_leaves_its_blocks_too(in_flight: bool) -> None:
    engine = scheduler()
    retaining(engine)
    run(engine)
    step = engine.plan(0.0) if in_flight else None
    engine.stop(1)
    if step is not None:
        assert engine.complete(results(step), 0.0).events == ()
    assert run(engine)[1].events == (RETAINED, Stopped(1, 17 if in_flight else 16))


def test_it_keeps_its_slot_until_it_has_left_and_others_go_on_beside_it() -> None:
    engine = scheduler(slots=2)
    engine.open(2, PROMPT, GREEDY, None, 0.0)
    engine.extend(2, 0, [1], then_decode=True)
    retaining(engine, max_tokens=16)
    engine.prefill(3, range(4), GREEDY, None, 0.0)
    run(engine)
    assert engine.load().running == 2
    assert shape(run(engine)[0]) == [(2, 1), (1, 0)]
    assert shape(run(engine)[0]) == [(2, 1), (3, 4)]


def test_what_was_stopped_before_it_was_computed_is_not_retained() -> None:
    engine = scheduler()
    retaining(engine)
    engine.stop(1)
    assert run(engine)[1].events == (Stopped(1, 15),)


def test_an_output_without_a_full_block_leaves_nothing() -> None:
    engine = scheduler()
    engine.open(1, PROMPT, GREEDY, KvSource((b"",)), 0.0, retain=True)
    engine.extend(1, 0, KNOWN[:11], then_decode=True)
    assert run(engine, token=EOS)[1].events == (Extended(1, 11, 15, 0.0), Finished(1, FinishReason.STOP, 11))


def test_commands_for_what_has_ended_and_not_left_are_ignored() -> None:
    engine = scheduler()
    finished(engine)
    engine.extend(1, 16, [1], then_decode=True)
    engine.stop(1)
    engine.throttle(1, 9.0)
    assert run(engine)[1].events == (RETAINED, Finished(1, FinishReason.STOP, 16))


@pytest.mark.parametrize("in_flight", [True, False])
def test_an_abort_meanwhile_drops_what_was_retained(in_flight: bool) -> None:
    engine = scheduler()
    finished(engine)
    step = engine.plan(0.0) if in_flight else None
    engine.abort(1)
    batch = run(engine)[1] if step is None else engine.complete(results(step), 0.0)
    assert batch.events == (Aborted(1),)
    assert engine.plan(0.0) is None
    assert engine.load().running == 0


def test_a_failing_export_loses_the_blocks_and_not_the_end() -> None:
    engine = scheduler()
    finished(engine)
    step = engine.plan(0.0)
    assert step is not None
    batch = engine.complete(replace(results(step), blocks={}, faults={1: EngineFault("broken")}), 0.0)
    assert batch.events == (Finished(1, FinishReason.STOP, 16),)


def test_a_step_that_only_exports_is_not_counted_as_a_step_of_decoding() -> None:
    engine = scheduler()
    retaining(engine, max_tokens=16)
    run(engine, takes_s=0.5)
    run(engine, takes_s=0.0)
    assert engine.load().step_s == 0.5
