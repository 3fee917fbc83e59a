"""Agents: what their turns have in common, and the figures that the mesh is measured at."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tests.unit.virtual.workloads.asking import turns_of
from virtual.workloads.agents import Agents
from virtual.workloads.chance import Lengths
from virtual.workloads.statistics import characterise

EIGHTH = 0.125
CALM = Agents(agents=8, groups=2, turns_a_read=1_000_000, scale=EIGHTH)


@pytest.mark.parametrize("seed", [1, 2])
def test_agents_hit_as_the_workload_that_the_mesh_was_built_for(seed: int) -> None:
    found = characterise(Agents(scale=EIGHTH), Random(seed), duration_s=600, block_tokens=8, scale=EIGHTH)
    assert 0.88 < found.hit < 0.93
    assert 0.70 < found.high_share < 0.80
    assert 0.03 < found.singular_share < 0.04
    assert found.requests > 2000


def test_a_prompt_is_the_one_before_it_its_answer_and_something_new() -> None:
    session = next(CALM.sessions(Random(1)))
    walked = list(turns_of(session, 4))
    for (before, answer), (after, _) in pairwise(walked):
        known = before.prompt + answer
        assert after.prompt[: len(known)] == known
        assert len(after.prompt) > len(known)


def test_agents_of_a_group_share_their_system_prompt_and_others_do_not() -> None:
    first = [session.next_turn(()) for session in CALM.sessions(Random(1))]
    starts = [turn.prompt[: int(CALM.system.least * EIGHTH)] for turn in first if turn is not None]
    assert len(starts) == CALM.agents
    assert starts[0] == starts[2] == starts[4]
    assert len(set(starts)) == CALM.groups


def test_what_is_asked_depends_on_the_seed_and_the_answers_alone() -> None:
    together = list(CALM.sessions(Random(5)))
    for session in together[1:]:
        list(turns_of(session, 7))
    assert list(turns_of(together[0], 20)) == list(turns_of(next(CALM.sessions(Random(5))), 20))
    assert list(turns_of(next(CALM.sessions(Random(6))), 20)) != list(turns_of(next(CALM.sessions(Random(5))), 20))


def test_every_turn_fits_the_context_and_new_tasks_follow_the_old() -> None:
    workload = Agents(agents=1, scale=EIGHTH)
    lengths = [len(turn.prompt) + turn.max_tokens for turn, _ in turns_of(next(workload.sessions(Random(1))), 300)]
    assert len(lengths) == 300
    assert max(lengths) <= workload.context_tokens


def test_what_a_helper_reads_is_long_new_and_shortly_answered() -> None:
    workload = Agents(agents=1, turns_a_read=1, scale=EIGHTH)
    (first, _), _, (second, _) = turns_of(next(workload.sessions(Random(1))), 3)
    for turn in (first, second):
        assert len(turn.prompt) > 20_000 * EIGHTH
        assert turn.max_tokens < 500 * EIGHTH
        assert turn.expected_tokens == turn.max_tokens
    system_tokens = int(workload.reader_system * EIGHTH)
    assert first.prompt[:system_tokens] == second.prompt[:system_tokens]
    assert first.prompt[: system_tokens + 4] != second.prompt[: system_tokens + 4]


def test_agents_whose_first_turn_may_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 60000"):
        Agents(task=Lengths(5000, 0.8, 500, 50_000))
