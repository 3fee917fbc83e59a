"""What can't be fails its sequence alone and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.engine.base import Failed
from pdd.engine.schedule import StepLimits
from tests.unit.engine.schedule.steps import EOS, GREEDY, VOCABULARY_SIZE, decoding, run, scheduler, shape


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


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE, 2**32 - 1])
@pytest.mark.parametrize("command", ["prefill", "open", "extend"])
def test_an_id_the_model_does_not_have_fails_its_sequence_alone_and_is_named(command: str, token: int) -> None:
    engine = scheduler()
    decoding(engine, 1)
    ids = [0, token, 0]
    if command == "prefill":
        engine.prefill(2, ids, GREEDY, None, 0.0)
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
    engine.prefill(1, prompt, GREEDY, None, 0.0)
    engine.open(2, prompt, GREEDY, None, 0.0)
    assert [type(event) for event in run(engine)[1].events] == [Failed, Failed]


def test_a_sequence_number_in_use_is_refused_to_the_caller() -> None:
    engine = scheduler()
    engine.open(1, [0], GREEDY, None, 0.0)
    with pytest.raises(ValueError, match="sequence 1 exists"):
        engine.prefill(1, [0], GREEDY, None, 0.0)


def test_limits_refuse_a_chunk_larger_than_a_step() -> None:
    with pytest.raises(ValueError, match="chunk_tokens"):
        StepLimits(chunk_tokens=100, step_tokens=50)


def test_limits_refuse_a_budget_without_room() -> None:
    with pytest.raises(ValueError, match="extend_tokens"):
        StepLimits(extend_tokens=0)
