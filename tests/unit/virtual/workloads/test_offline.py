"""A workload walked without a mesh."""

from __future__ import annotations

from random import Random

import pytest

from virtual.workloads.agents import Agents
from virtual.workloads.chat import Chat
from virtual.workloads.mooncake import Mooncake, TraceRequest
from virtual.workloads.offline import TOKEN_S, exchanges
from virtual.workloads.statistics import characterise

AGENTS = Agents(agents=6, ramp_s=10.0, scale=0.125)


def test_requests_come_in_order_and_none_after_the_end() -> None:
    times = [exchange.asked_s for exchange in exchanges(AGENTS, Random(1), 60.0)]
    assert times == sorted(times)
    assert 50.0 < times[-1] < 60.0


def test_answers_are_as_long_as_asked_and_found_in_the_next_prompt() -> None:
    seen = list(exchanges(Agents(agents=1, turns_a_read=1_000_000, scale=0.125), Random(1), 60.0))
    before, after = seen[:2]
    assert len(before.answer) == before.turn.max_tokens
    known = before.turn.prompt + before.answer
    assert after.turn.prompt[: len(known)] == known
    assert after.asked_s == pytest.approx(before.asked_s + before.turn.max_tokens * TOKEN_S + after.turn.think_s)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert list(exchanges(Chat(), Random(3), 30.0)) == list(exchanges(Chat(), Random(3), 30.0))


def test_statistics_count_long_missed_and_shortly_answered_requests_as_singular() -> None:
    requests = tuple(
        TraceRequest(at, input_tokens, output_tokens, tuple(range(first, first + -(-input_tokens // 512))))
        for at, (input_tokens, output_tokens, first) in enumerate([(512 * 41, 100, 0), (512 * 41, 600, 100), (512 * 41, 100, 0)])
    )
    found = characterise(Mooncake(requests), Random(1), 1.0, 512)
    assert found.requests == 3
    assert found.singular_share == pytest.approx(1 / 3)
    assert found.hit == pytest.approx(40 / 123)  # the third's, but for the block with its last token
    assert found.main_hit == pytest.approx(1 / 3)
    assert found.high_share == pytest.approx(1 / 3)


def test_a_workload_without_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing is asked"):
        characterise(Mooncake(()), Random(1), 1.0, 512)
