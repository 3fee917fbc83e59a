"""Prefills: chunks, blocks and what they say at the end."""

from __future__ import annotations

import pytest

from pdd.engine.base import Failed, KvBlocks, KvSource, Prefilled
from pdd.engine.schedule import StepLimits
from tests.unit.engine.schedule.steps import GREEDY, run, scheduler, shape


def test_prefill_goes_in_near_equal_chunks_and_gives_its_blocks_after_each() -> None:
    engine = scheduler()
    engine.prefill(1, range(70), GREEDY, None, 0.0)
    batches = [run(engine)[1] for _ in range(3)]
    assert [event for batch in batches for event in batch.events] == [
        KvBlocks(1, 0, (b"block", b"block")),
        KvBlocks(1, 2, (b"block",)),
        KvBlocks(1, 3, (b"block",)),
        Prefilled(1, None, 70, 0.0, 0.0),
    ]
    assert [[(out.index, out.token) for out in batch.tokens] for batch in batches] == [[], [], [(0, 7)]]


def test_what_one_prefill_leaves_of_a_step_the_next_ones_take() -> None:
    engine = scheduler()
    engine.prefill(1, range(36), GREEDY, None, 0.0)
    engine.prefill(2, range(70), GREEDY, None, 0.0)
    assert [shape(run(engine)[0]) for _ in range(4)] == [[(1, 16), (2, 16)], [(1, 20), (2, 12)], [(2, 20)], [(2, 22)]]


def test_tails_of_several_prefills_share_a_step() -> None:
    engine = scheduler()
    for seq in (1, 2, 3):
        engine.prefill(seq, range(36), GREEDY, KvSource((b"", b"")), 0.0)
    assert shape(run(engine)[0]) == [(1, 4), (2, 4), (3, 4)]


def test_prefill_reports_its_wait_and_its_time() -> None:
    engine = scheduler(slots=1)
    engine.prefill(1, range(20), GREEDY, None, 1.0)
    engine.prefill(2, range(40), GREEDY, None, 1.0)
    run(engine, now_s=3.0, takes_s=0.5)
    run(engine, now_s=4.0, takes_s=0.5)
    _, batch = run(engine, now_s=5.0, takes_s=0.25)
    assert batch.events[-1] == Prefilled(2, None, 40, queued_s=3.0, compute_s=1.25)


def test_prefill_chunks_take_what_extends_leave_of_a_step() -> None:
    engine = scheduler(limits=StepLimits(32, 48, extend_tokens=20))
    engine.open(1, [0], GREEDY, KvSource(()), 0.0)
    engine.extend(1, 0, range(30), then_decode=False)
    engine.prefill(2, range(128), GREEDY, None, 0.0)
    assert [shape(run(engine)[0]) for _ in range(2)] == [[(1, 20), (2, 16)], [(1, 11), (2, 32)]]


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_given_blocks_come_with_the_first_step_and_are_neither_computed_nor_emitted(blocks: int) -> None:
    engine = scheduler(limits=StepLimits(64, 64))
    kv = KvSource((b"given",) * blocks)
    engine.prefill(1, range(48), GREEDY, kv, 0.0)
    assert engine.load().queued_tokens == 48 - 16 * blocks
    step, batch = run(engine)
    (work,) = step.works
    assert (work.kv, work.clear) == (kv, True)
    assert [row.position for row in work.rows] == list(range(16 * blocks, 48))
    assert batch.events == (
        KvBlocks(1, blocks, (b"block",) * (3 - blocks)),
        Prefilled(1, None, 48 - 16 * blocks, 0.0, 0.0),
    )


@pytest.mark.parametrize(("tokens", "blocks"), [(15, 1), (16, 1), (17, 2), (48, 3)])
def test_blocks_that_leave_no_token_to_compute_fail_the_prefill(tokens: int, blocks: int) -> None:
    engine = scheduler()
    engine.prefill(1, range(tokens), GREEDY, KvSource((b"",) * blocks), 0.0)
    (event,) = run(engine)[1].events
    assert isinstance(event, Failed)
    assert f"{blocks} blocks given of a prompt of {tokens} tokens; give at most {(tokens - 1) // 16}" in str(event.fault)
