"""Extends: what they take of a step, and what becomes of the ids."""

from __future__ import annotations

import pytest

from pdd.engine.base import Extended, Finished, FinishReason, KvSource
from pdd.engine.schedule import StepLimits
from pdd.engine.step import Step
from tests.unit.engine.schedule.steps import GREEDY, decoding, run, scheduler, shape


def test_a_step_holds_decodes_then_whole_extends_then_prefill_chunks() -> None:
    engine = scheduler()
    decoding(engine, 1)
    engine.prefill(2, range(100), GREEDY, None, 0.0)
    engine.open(3, range(32), GREEDY, KvSource((b"", b"")), 0.0)
    engine.extend(3, 0, range(40), then_decode=True)
    step, _ = run(engine)
    assert shape(step) == [(1, 1), (3, 40), (2, 16)]
    assert [row.want_logits for work in step.works for row in work.rows].count(True) == 2


def test_an_extend_up_to_the_step_limit_is_one_pass_beside_decodes() -> None:
    engine = scheduler()
    decoding(engine, 1)
    engine.open(2, range(24), GREEDY, None, 0.0)
    engine.extend(2, 0, range(40), then_decode=True)
    step, batch = run(engine)
    assert shape(step) == [(1, 1), (2, 64)]
    assert batch.events == (Extended(2, 40, 64, 0.0),)


def test_extends_share_a_steps_budget_oldest_first_and_the_rest_goes_to_the_next() -> None:
    engine = scheduler(limits=StepLimits(32, 64, extend_tokens=40))
    for seq, tokens in ((1, 29), (2, 39), (3, 9)):
        engine.open(seq, [0], GREEDY, KvSource(()), 0.0)
        engine.extend(seq, 0, range(tokens), then_decode=False)
    assert [shape(run(engine)[0]) for _ in range(2)] == [[(1, 30), (2, 10)], [(2, 30), (3, 10)]]


@pytest.mark.parametrize("extend_tokens", [1, 7, 39, 1000])
def test_a_bystander_decodes_in_every_step_of_an_extend_and_none_has_more_than_the_budget(extend_tokens: int) -> None:
    engine = scheduler(limits=StepLimits(32, 64, extend_tokens))
    decoding(engine, 1)
    engine.open(2, [0], GREEDY, KvSource(()), 0.0)
    engine.extend(2, 0, range(40), then_decode=False)
    steps: list[Step] = []
    extended: list[Extended] = []
    while not extended:
        step, batch = run(engine, now_s=len(steps), takes_s=0.5)
        steps.append(step)
        extended = [event for event in batch.events if isinstance(event, Extended)]
    assert len(steps) == -(-41 // min(extend_tokens, 64))
    assert extended == [Extended(2, 40, 41, 0.5 * len(steps))]
    assert all(shape(step)[0] == (1, 1) and shape(step)[1][1] <= extend_tokens for step in steps)


def test_a_pass_longer_than_a_step_is_split_and_told_once() -> None:
    engine = scheduler()
    engine.open(1, range(140), GREEDY, None, 0.0)
    engine.extend(1, 0, [1, 2], then_decode=True)
    done = [run(engine, now_s=n, takes_s=0.5) for n in range(3)]
    assert [shape(step) for step, _ in done] == [[(1, 64)], [(1, 64)], [(1, 14)]]
    assert [batch.events for _, batch in done] == [(), (), (Extended(1, 2, 142, 1.5),)]
    assert [out.index for out in done[2][1].tokens] == [2]


def test_imported_blocks_are_not_computed_and_the_tail_is() -> None:
    engine = scheduler()
    kv = KvSource((b"one", b"two"))
    engine.open(1, range(37), GREEDY, kv, 0.0)
    engine.extend(1, 0, [5, 6], then_decode=True)
    step, batch = run(engine)
    (work,) = step.works
    assert work.kv is kv
    assert [(row.position, row.token) for row in work.rows] == [(n, n) for n in range(32, 37)] + [(37, 5), (38, 6)]
    assert batch.events == (Extended(1, 2, 7, 0.0),)
    assert run(engine)[0].works[0].kv is None


def test_queued_extends_are_one_pass_each_in_order() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    engine.extend(1, 0, [1, 2], then_decode=False)
    engine.extend(1, 2, [3], then_decode=True)
    assert [run(engine)[1].events for _ in range(2)] == [(Extended(1, 2, 3, 0.0),), (Extended(1, 3, 1, 0.0),)]


def test_the_draw_sees_all_ids_before_it() -> None:
    engine = scheduler()
    engine.open(1, [9, 8], GREEDY, None, 0.0)
    engine.extend(1, 0, [1, 2], then_decode=True)
    step, _ = run(engine, token=5)
    draw = step.works[0].draw
    assert draw is not None
    assert (draw.index, tuple(draw.history.prompt)) == (2, (9, 8))
    draw = run(engine)[0].works[0].draw
    assert draw is not None
    assert (draw.index, draw.history.output[:3]) == (3, [1, 2, 5])


def test_known_ids_up_to_max_tokens_leave_nothing_to_decode() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    engine.extend(1, 0, range(50), then_decode=True)
    step, batch = run(engine)
    assert step.works[0].draw is None
    assert batch.events == (Extended(1, 50, 51, 0.0), Finished(1, FinishReason.LENGTH, 50))
