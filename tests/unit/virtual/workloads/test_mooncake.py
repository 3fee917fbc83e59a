"""Replay of a trace: prompts are equal where the trace says so, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from virtual.workloads.base import Ids
from virtual.workloads.mooncake import BLOCK_TOKENS, Mooncake, TraceRequest, read_trace
from virtual.workloads.reference import LruReference, Reference

SLICE = Path(__file__).parents[3] / "fixtures" / "mooncake" / "conversation_slice.jsonl"
FEW = (
    TraceRequest(0, 1300, 40, (5, 6, 7)),
    TraceRequest(1000, 1300, 50, (5, 6, 8)),
    TraceRequest(1500, 1300, 60, (5, 6, 7)),  # the very same prompt as the first's, by the trace
    TraceRequest(4000, 1024, 1, (5, 9)),
)


def slice_of_the_trace() -> tuple[TraceRequest, ...]:
    return tuple(read_trace(SLICE.read_text().splitlines()))


def prompts_of(workload: Mooncake) -> list[Ids]:
    return [turn.prompt for session in workload.sessions(Random(1)) if (turn := session.next_turn(())) is not None]


def test_equal_blocks_have_equal_tokens_and_partial_ones_are_their_requests_own() -> None:
    one, other, again, short = prompts_of(Mooncake(FEW))
    assert one[:1024] == other[:1024] == again[:1024]
    assert one[:512] == short[:512]
    assert one[512:1024] != short[512:1024]
    assert len({one[1024:], other[1024:], again[1024:]}) == 3
    assert [len(prompt) for prompt in (one, other, again, short)] == [1300, 1300, 1300, 1024]


def test_answers_are_exactly_as_long_as_in_the_trace_and_nothing_follows_them() -> None:
    for session, request in zip(Mooncake(FEW).sessions(Random(1)), FEW, strict=True):
        turn = session.next_turn(())
        assert turn is not None
        assert turn.max_tokens == request.output_tokens
        assert session.next_turn((1,) * request.output_tokens) is None


def test_a_window_begins_at_zero_and_a_rate_shortens_the_pauses() -> None:
    assert [session.start_s for session in Mooncake(FEW, rate=2.0).sessions(Random(1))] == [0.0, 0.5, 0.75, 2.0]
    window = Mooncake(FEW, from_s=1.0, to_s=4.0)
    assert [session.start_s for session in window.sessions(Random(1))] == [0.0, 0.5]
    assert prompts_of(window) == prompts_of(Mooncake(FEW))[1:3]


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_a_reference_hits_where_the_trace_does_at_any_scale(scale: float) -> None:
    requests = slice_of_the_trace()
    workload = Mooncake(requests, scale=scale)
    reference, by_names = Reference(workload.block_tokens), LruReference()
    for request, prompt in zip(requests, prompts_of(workload), strict=True):
        assert len(prompt) + max(1, int(request.output_tokens * scale)) <= workload.context_tokens
        whole = request.blocks[: request.input_tokens // BLOCK_TOKENS]
        assert reference.asked(prompt).main == by_names.match(whole) * workload.block_tokens
        by_names.keep(whole)
    assert reference.tally.main > 0


def test_a_scale_that_cuts_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="power of ½"):
        replace(Mooncake(FEW), scale=0.3)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is no request"),
        (json.dumps({"timestamp": 0, "input_length": 5, "output_length": 1}), "line 2 is no request"),
        (json.dumps({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}), "line 2: 1 hash_ids"),
    ],
)
def test_a_line_that_is_none_of_a_trace_is_named(line: str, why: str) -> None:
    good = json.dumps({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})
    with pytest.raises(ValueError, match=why):
        list(read_trace([good, line]))
