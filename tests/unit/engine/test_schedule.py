from dataclasses import replace

import pytest

from pdd.engine.base import (
    Aborted,
    Capabilities,
    EngineFault,
    Extended,
    Failed,
    Finished,
    FinishReason,
    KvBlocks,
    KvSource,
    Prefilled,
    StepBatch,
    Stopped,
)
from pdd.engine.schedule import Scheduler, StepLimits
from pdd.engine.step import Step, StepResult
from pdd.sampling import Sampled, SamplingParams

EOS = 99
GREEDY = SamplingParams(max_tokens=50, seed=0, temperature=0.0, eos_ids=(EOS,))
LIMITS = StepLimits(chunk_tokens=32, step_tokens=64)
VOCABULARY_SIZE = 1000


def scheduler(slots: int = 4, limits: StepLimits = LIMITS, context_tokens: int = 256) -> Scheduler:
    return Scheduler(Capabilities(context_tokens, slots, True, VOCABULARY_SIZE), 16, limits)


def results(step: Step, token: int = 7) -> StepResult:
    """What a model gives that samples `token` everywhere."""
    return StepResult(
        sampled={work.seq: Sampled(token, None) for work in step.works if work.draw},
        scored={work.seq: (token,) * len(work.scores) for work in step.works},
        blocks={work.seq: (b"block",) * (work.blocks[1] - work.blocks[0]) for work in step.works if work.blocks},
    )


def run(scheduler: Scheduler, now_s: float = 0.0, token: int = 7, takes_s: float = 0.0) -> tuple[Step, StepBatch]:
    step = scheduler.plan(now_s)
    assert step is not None
    return step, scheduler.complete(results(step, token), now_s + takes_s)


def shape(step: Step) -> list[tuple[int, int]]:
    """(sequence, rows) of a step's works, in order."""
    return [(work.seq, len(work.rows)) for work in step.works]


def decoding(scheduler: Scheduler, seq: int, prompt_tokens: int = 20) -> None:
    """Bring a sequence to where it decodes from output index 2 on."""
    scheduler.open(seq, range(prompt_tokens), GREEDY, None, 0.0)
    scheduler.extend(seq, 0, [1], then_decode=True)
    while not run(scheduler)[1].tokens:
        pass


def test_nothing_to_do_plans_nothing() -> None:
    idle = scheduler()
    assert idle.plan(0.0) is None
    assert idle.next_due_s() is None


def test_prefill_goes_in_chunks_and_gives_its_blocks_after_each() -> None:
    engine = scheduler()
    engine.prefill(1, range(70), GREEDY, 0.0)
    batches = [run(engine)[1] for _ in range(3)]
    assert [event for batch in batches for event in batch.events] == [
        KvBlocks(1, 0, (b"block", b"block")),
        KvBlocks(1, 2, (b"block", b"block")),
        Prefilled(1, None, 70, 0.0, 0.0),
    ]
    assert [[(out.index, out.token) for out in batch.tokens] for batch in batches] == [[], [], [(0, 7)]]


def test_the_last_tokens_of_one_prefill_share_a_chunk_with_the_first_of_the_next() -> None:
    engine = scheduler()
    engine.prefill(1, range(36), GREEDY, 0.0)
    engine.prefill(2, range(70), GREEDY, 0.0)
    assert [shape(run(engine)[0]) for _ in range(3)] == [[(1, 32)], [(1, 4), (2, 16)], [(2, 32)]]


def test_prefill_reports_its_wait_and_its_time() -> None:
    engine = scheduler(slots=1)
    engine.prefill(1, range(20), GREEDY, 1.0)
    engine.prefill(2, range(40), GREEDY, 1.0)
    run(engine, now_s=3.0, takes_s=0.5)
    run(engine, now_s=4.0, takes_s=0.5)
    _, batch = run(engine, now_s=5.0, takes_s=0.25)
    assert batch.events == (Prefilled(2, None, 40, queued_s=3.0, compute_s=1.25),)


def test_a_step_holds_decodes_then_whole_extends_then_prefill_chunks() -> None:
    engine = scheduler()
    decoding(engine, 1)
    engine.prefill(2, range(100), GREEDY, 0.0)
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


def test_prefill_chunks_take_what_extends_leave_of_a_step() -> None:
    engine = scheduler(limits=StepLimits(32, 48, extend_tokens=20))
    engine.open(1, [0], GREEDY, KvSource(()), 0.0)
    engine.extend(1, 0, range(30), then_decode=False)
    engine.prefill(2, range(100), GREEDY, 0.0)
    assert [shape(run(engine)[0]) for _ in range(2)] == [[(1, 20), (2, 16)], [(1, 11), (2, 32)]]


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


def test_a_slot_is_cleared_when_it_is_taken_and_only_then() -> None:
    engine = scheduler(slots=1)
    decoding(engine, 1)
    assert not run(engine)[0].works[0].clear
    engine.stop(1)
    engine.prefill(2, range(40), GREEDY, 0.0)
    assert [run(engine)[0].works[0].clear for _ in range(2)] == [True, False]


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


@pytest.mark.parametrize(
    ("prompt", "first_index", "ids", "says"),
    [
        (20, 1, [1], "extend at index 1: the next index the sequence lacks is 0"),
        (20, 0, [], "no ids"),
        (20, 0, [EOS], "end of sequence"),
        (20, 0, [1] * 51, "past max_tokens 50"),
        (250, 0, [1] * 7, "context of 256"),
    ],
)
def test_an_extend_that_cannot_be_fails_the_sequence_and_says_why(
    prompt: int, first_index: int, ids: list[int], says: str
) -> None:
    engine = scheduler()
    engine.open(1, [0] * prompt, GREEDY, None, 0.0)
    engine.extend(1, first_index, ids, then_decode=True)
    _, batch = run(engine)
    (event,) = batch.events
    assert isinstance(event, Failed)
    assert says in str(event.fault)


def test_an_eos_may_be_given_where_it_is_ignored() -> None:
    engine = scheduler()
    engine.open(1, [0], replace(GREEDY, ignore_eos=True), None, 0.0)
    engine.extend(1, 0, [EOS], then_decode=True)
    assert run(engine, token=EOS)[1].tokens[0].token == EOS


def test_a_sequence_that_decodes_takes_no_ids() -> None:
    engine = scheduler()
    decoding(engine, 1)
    engine.extend(1, 2, [1], then_decode=True)
    (event,) = run(engine)[1].events
    assert isinstance(event, Failed)


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
        ([0, 1, 2], StepBatch(1, 0.0, (), (Extended(1, 2, 3, 0.0, 2, 2),))),
        ([], StepBatch(2, 0.0, (), (Extended(1, 4, 2, 0.0),))),
        ([5, 6], StepBatch(3, 0.0, (), (Extended(1, 6, 2, 0.0, 1, 1),))),
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


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE, 2**32 - 1])
@pytest.mark.parametrize("command", ["prefill", "open", "extend"])
def test_an_id_the_model_does_not_have_fails_its_sequence_alone_and_is_named(command: str, token: int) -> None:
    engine = scheduler()
    decoding(engine, 1)
    ids = [0, token, 0]
    if command == "prefill":
        engine.prefill(2, ids, GREEDY, 0.0)
    else:
        engine.open(2, ids if command == "open" else [0], GREEDY, None, 0.0)
    if command == "extend":
        engine.extend(2, 0, ids, then_decode=True)
    step, batch = run(engine)
    assert shape(step) == [(1, 1)]
    (event,) = batch.events
    assert isinstance(event, Failed)
    assert f"token id {token} lies outside this model's vocabulary of {VOCABULARY_SIZE}" in str(event.fault)


@pytest.mark.parametrize("prompt", [[], [0] * 256])
def test_a_prompt_that_leaves_no_room_fails(prompt: list[int]) -> None:
    engine = scheduler()
    engine.prefill(1, prompt, GREEDY, 0.0)
    engine.open(2, prompt, GREEDY, None, 0.0)
    assert [type(event) for event in run(engine)[1].events] == [Failed, Failed]


def test_a_sequence_number_in_use_is_refused_to_the_caller() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    with pytest.raises(ValueError, match="sequence 1 exists"):
        engine.prefill(1, [0], GREEDY, 0.0)


def test_known_ids_up_to_max_tokens_leave_nothing_to_decode() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    engine.extend(1, 0, range(50), then_decode=True)
    step, batch = run(engine)
    assert step.works[0].draw is None
    assert batch.events == (Extended(1, 50, 51, 0.0), Finished(1, FinishReason.LENGTH, 50))


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
    engine.prefill(2, range(4), GREEDY, 0.0)
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
        engine.prefill(seq, range(4), GREEDY, 0.0)
    engine.abort(2)
    assert [shape(run(engine)[0]) for _ in range(2)] == [[(1, 4)], [(3, 4)]]


def test_load_counts_what_runs_waits_and_is_to_be_computed() -> None:
    engine = scheduler(slots=1)
    engine.prefill(1, range(70), GREEDY, 0.0)
    engine.prefill(2, range(10), GREEDY, 0.0)
    run(engine, takes_s=0.2)
    load = engine.load()
    assert (load.running, load.waiting, load.slots, load.queued_tokens) == (1, 1, 1, 48)
    assert (load.kv_used, load.step_s) == (32 / 256, 0.2)


def test_limits_refuse_a_chunk_larger_than_a_step() -> None:
    with pytest.raises(ValueError, match="chunk_tokens"):
        StepLimits(chunk_tokens=100, step_tokens=50)


def test_limits_refuse_a_budget_without_room() -> None:
    with pytest.raises(ValueError, match="extend_tokens"):
        StepLimits(extend_tokens=0)
