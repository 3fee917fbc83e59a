"""Requests at every edge: prompts around a block and a chunk, shortest answers, ends wherever they may fall. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.generation import Usage
from pdd.engine.base import FinishReason
from tests.mesh.gateway.moments import CPU, OUTPUT, PROMPT, Asked, answer, answers, asked, mesh_spec
from tests.mesh.virtual.alone import Alone, alone
from tests.mesh.virtual.asking import Answer
from wan.link import LinkSettings

STREAMING = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
WAYS: list[dict[str, Any]] = [
    {"pipeline": "direct"},
    {"handoff": "one_shot"},
    {"handoff": "catch_up"},
]
WAY = pytest.mark.parametrize("way", WAYS, ids=["direct", "one_shot", "catch_up"])
CHUNK = 128  # tokens of a prefill step


def check(request: Asked, found: Answer, expected: Alone | None = None) -> None:
    expected = expected or alone(request.prompt, request.sampling)
    assert tuple(found.tokens) == expected.tokens
    assert found.end is not None
    assert found.end.reason is expected.reason
    assert found.end.usage == Usage(len(request.prompt), len(expected.tokens), 0)


@WAY
@STREAMING
def test_prompts_around_a_block_and_a_chunk(way: dict[str, Any], streaming: bool) -> None:
    lengths = (1, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK)
    requests = [asked(tokens, 40, streaming=streaming) for tokens in lengths]
    for request, found in zip(requests, answers(mesh_spec(**way), requests), strict=True):
        check(request, found)


@WAY
@pytest.mark.parametrize("max_tokens", [1, 2, 40])
def test_requests_that_fill_the_context_to_its_end(way: dict[str, Any], max_tokens: int) -> None:
    config, line = replace(CPU, context_tokens=512), LinkSettings(rate_mbit=1000.0, rtt_ms=40.0)
    request = asked(config.context_tokens - max_tokens, max_tokens)
    check(request, answer(mesh_spec(config, line, **way), request))


@WAY
@STREAMING
def test_answers_of_a_few_tokens(way: dict[str, Any], streaming: bool) -> None:
    requests = [asked(prompt_tokens, tokens, streaming=streaming) for prompt_tokens in (1, PROMPT) for tokens in (1, 2, 3, 4)]
    for request, found in zip(requests, answers(mesh_spec(**way), requests), strict=True):
        check(request, found)


@WAY
def test_an_end_of_sequence_at_any_index_around_the_switch(way: dict[str, Any]) -> None:
    """At indices 0 and 1, and at each of those that are made while main's KV arrives and main takes over."""
    spec = mesh_spec(**way)
    whole = answer(spec, asked())
    assert whole.end is not None
    switch = whole.end.timeline.eager_tokens
    makers = set()
    for index in {0, 1, 2, *range(max(3, switch - 10), switch + 4)}:
        request = _ending_at(index)
        found = answer(spec, request)  # alone, so that the switch falls where it fell above
        check(request, found)
        assert found.end is not None
        assert (found.end.reason, len(found.tokens)) == (FinishReason.STOP, index)
        makers |= set(found.sources[-1:])
    assert makers == set(whole.sources)


def _ending_at(index: int) -> Asked:
    """A request whose token of this index is the first that is an end of sequence."""
    for text in range(20):
        request = asked(text=text)
        tokens = alone(request.prompt, request.sampling).tokens
        if tokens[index] not in tokens[:index]:
            return asked(text=text, ignore_eos=False, eos_ids=(tokens[index],))
    raise AssertionError(f"no text has a new token at index {index}")


@WAY
def test_logprobs_are_one_a_token_and_those_of_one_engine(way: dict[str, Any]) -> None:
    request = asked(top_logprobs=3, temperature=0.8, seed=5)
    expected = alone(request.prompt, request.sampling)
    found = answer(mesh_spec(**way), request)
    check(request, found, expected)
    assert len(found.logprobs) == OUTPUT
    for own, reference in zip(found.logprobs, expected.logprobs, strict=True):
        assert own.logprob == pytest.approx(reference.logprob, abs=1e-4)
        assert [token for token, _ in own.top] == [token for token, _ in reference.top]
        assert [value for _, value in own.top] == pytest.approx([value for _, value in reference.top], abs=1e-4)
