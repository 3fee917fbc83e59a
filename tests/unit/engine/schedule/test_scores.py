"""Scores: which rows choose for ids that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.engine.base import Extended, Finished, FinishReason, KvSource, StepBatch
from pdd.engine.schedule import Scheduler, StepLimits
from tests.unit.engine.schedule.steps import GREEDY, results, run, scheduler


def scored(scheduler: Scheduler) -> tuple[list[int], list[int], StepBatch]:
    """Run a step with one work: positions that want logits, output indices scored, and what came of it."""
    step, batch = run(scheduler)
    (work,) = step.works
    wanted = [row.position for row in work.rows if row.want_logits]
    return wanted, [draw.index for draw in work.scores], batch


def test_the_row_before_each_id_scores_it_and_the_tail_scores_index_0() -> None:
    engine = scheduler()
    engine.open(1, range(20), GREEDY, KvSource((b"",)), 0.0)
    engine.extend(1, 0, [7, 8, 7], then_decode=True, score=True)
    wanted, indices, batch = scored(engine)
    assert (wanted, indices) == ([19, 20, 21, 22], [0, 1, 2])
    assert batch.events == (Extended(1, 3, 7, 0.0, scored_tokens=3, agreed_tokens=2),)
    assert [out.index for out in batch.tokens] == [3]


def test_index_0_is_not_scored_where_the_prompt_has_no_tail() -> None:
    engine = scheduler()
    engine.open(1, range(32), GREEDY, KvSource((b"", b"")), 0.0)
    engine.extend(1, 0, [7, 7], then_decode=True, score=True)
    wanted, indices, batch = scored(engine)
    assert (wanted, indices) == ([32, 33], [1])
    assert batch.events == (Extended(1, 2, 2, 0.0, scored_tokens=1, agreed_tokens=1),)


def test_the_last_row_of_one_extend_scores_the_first_id_of_the_next() -> None:
    engine = scheduler()
    engine.open(1, range(16), GREEDY, KvSource((b"",)), 0.0)
    engine.extend(1, 0, [1, 7], then_decode=False, score=True)
    assert scored(engine)[:2] == ([16, 17], [1, 2])
    engine.extend(1, 2, [7, 8, 7], then_decode=False, score=True)
    assert scored(engine)[2].events == (Extended(1, 5, 3, 0.0, scored_tokens=3, agreed_tokens=2),)


def test_an_extend_that_does_not_ask_is_not_scored_nor_is_the_first_id_after_it() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    for first_index, score in ((0, True), (2, False), (4, True)):
        engine.extend(1, first_index, [7, 7], then_decode=False, score=score)
    assert [scored(engine)[1:] for _ in range(3)] == [
        ([0, 1, 2], StepBatch(1, 0.0, (), (Extended(1, 2, 3, 0.0, 2, 2),), 1, 3)),
        ([], StepBatch(2, 0.0, (), (Extended(1, 4, 2, 0.0),), 1, 2)),
        ([5, 6], StepBatch(3, 0.0, (), (Extended(1, 6, 2, 0.0, 1, 1),), 1, 2)),
    ]


def test_scores_of_an_extend_that_takes_several_steps_are_told_once() -> None:
    engine = scheduler(limits=StepLimits(32, 64, extend_tokens=4))
    engine.open(1, range(18), GREEDY, KvSource((b"",)), 0.0)
    engine.extend(1, 0, [7] * 8, then_decode=True, score=True)
    assert [scored(engine)[1] for _ in range(2)] == [[0, 1, 2], [3, 4, 5, 6]]
    assert scored(engine)[2].events == (Extended(1, 8, 10, 0.0, scored_tokens=8, agreed_tokens=8),)


def test_scoring_asks_for_no_logprobs_and_sees_only_the_ids_before() -> None:
    engine = scheduler()
    engine.open(1, [9], replace(GREEDY, top_logprobs=5), None, 0.0)
    engine.extend(1, 0, [1, 2], then_decode=False, score=True)
    step = engine.plan(0.0)
    assert step is not None
    engine.extend(1, 2, [3], then_decode=True)
    assert [list(draw.history.output) for draw in step.works[0].scores] == [[], [1], [1, 2]]
    assert all(draw.params.top_logprobs is None for draw in step.works[0].scores)
    engine.complete(results(step), 0.0)


@pytest.mark.parametrize(("max_tokens", "prompt"), [(4, 20), (50, 252)], ids=["max_tokens", "context"])
def test_nothing_is_scored_past_the_last_token_there_can_be(max_tokens: int, prompt: int) -> None:
    engine = scheduler(limits=StepLimits(32, 512))
    engine.open(1, range(prompt), replace(GREEDY, max_tokens=max_tokens), None, 0.0)
    engine.extend(1, 0, [7] * 4, then_decode=True, score=True)
    _, indices, batch = scored(engine)
    assert indices == [0, 1, 2, 3]
    assert batch.events[-1] == Finished(1, FinishReason.LENGTH, 4)


def test_a_token_that_is_not_asked_for_is_not_scored() -> None:
    engine = scheduler()
    engine.open(1, range(40), GREEDY, None, 0.0)
    engine.extend(1, 0, [7] * 20, then_decode=True)
    wanted, indices, _ = scored(engine)
    assert (wanted, indices) == ([59], [])
