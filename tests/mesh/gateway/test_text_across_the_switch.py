"""What a client reads where a stop string or a character lies across the switch, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.answer import Answers
from gateway.detokenizer import Vocabulary
from gateway.generation import GenerationSpec
from gateway.metrics import GatewayMetrics
from gateway.prompting import Ask
from gateway.text import TextDelta, TextEnd
from pdd.engine.base import FinishReason
from pdd.engine.sim.vocabulary import sim_card
from tests.eventually import eventually
from tests.mesh.gateway.moments import Asked, answer, asked, mesh_spec
from tests.mesh.virtual.alone import alone
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh

VOCABULARY = Vocabulary(sim_card(8192).tokenizer)
WAY = pytest.mark.parametrize("handoff", ["one_shot", "catch_up"])
STREAMING = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])


def read(spec: MeshSpec, request: Asked, stop: tuple[str, ...] = ()) -> tuple[list[TextDelta], TextEnd]:
    """The answer's deltas and its end, as both APIs get them."""
    return run(_read, spec, request, stop, limit_s=60.0)


async def _read(spec: MeshSpec, request: Asked, stop: tuple[str, ...]) -> tuple[list[TextDelta], TextEnd]:
    ask = Ask(GenerationSpec(request.prompt, request.sampling, "test", request.streaming), stop)
    async with running_mesh(spec) as mesh:
        answers = Answers(mesh.gateway, VOCABULARY, GatewayMetrics(CollectorRegistry()))
        async with answers.open(ask, asyncio.get_running_loop().time()) as open_answer:
            deltas = [delta async for delta in open_answer]
        await eventually(lambda: mesh.holds_nothing)
    return deltas, open_answer.end


def text_of(deltas: list[TextDelta], end: TextEnd) -> str:
    return "".join(delta.text for delta in deltas) + end.text


def pieces_of(tokens: Sequence[int]) -> list[str]:
    return [VOCABULARY.whole_text_of(token) or "" for token in tokens]


@WAY
@STREAMING
@pytest.mark.parametrize("ahead", [2, 1, 0])  # tokens of the stop string that the relay makes: all, one, none
def test_a_stop_string_across_the_switch(handoff: str, streaming: bool, ahead: int) -> None:
    spec = mesh_spec(handoff=handoff)
    whole = answer(spec, asked(streaming=streaming))
    assert whole.end is not None
    begin = whole.end.timeline.eager_tokens - ahead
    text, before, stop = _stopping_at(begin)
    deltas, end = read(spec, asked(text=text, streaming=streaming), (stop,))
    assert text_of(deltas, end) == before
    assert end.reason is FinishReason.STOP
    assert end.usage.completion_tokens == begin + 2


def _stopping_at(begin: int) -> tuple[int, str, str]:
    """A text in which tokens `begin` and `begin + 1` make a stop string that is nowhere earlier; what is before it; and it."""
    for text in range(20):
        request = asked(text=text)
        pieces = pieces_of(alone(request.prompt, request.sampling).tokens)
        stop = pieces[begin][-2:] + pieces[begin + 1]
        before = "".join(pieces).partition(stop)[0]
        if before == "".join(pieces[: begin + 1])[:-2]:
            return text, before, stop
    raise AssertionError(f"no text has anything new at index {begin}")


@WAY
def test_the_start_of_a_stop_string_that_becomes_none_is_shown_after_all(handoff: str) -> None:
    spec = mesh_spec(handoff=handoff)
    whole = answer(spec, asked())
    assert whole.end is not None
    pieces = pieces_of(whole.tokens)
    begin = whole.end.timeline.eager_tokens - 1
    stop = "".join(pieces[begin : begin + 2]) + "#"
    deltas, end = read(spec, asked(), (stop,))
    assert text_of(deltas, end) == "".join(pieces)
    assert end.reason is FinishReason.LENGTH


@WAY
@STREAMING
def test_a_character_whose_bytes_come_from_relay_and_main(handoff: str, streaming: bool) -> None:
    first, second = "é".encode()
    either: dict[str, Any] = {"logit_bias": ((first, 100.0), (second, 100.0))}  # the bytes, in any order
    spec, cut = mesh_spec(handoff=handoff), 0
    for text in range(12):
        request = asked(text=text, streaming=streaming, **either)
        deltas, end = read(spec, request)
        tokens = [token for delta in deltas for token in delta.tokens]
        assert set(tokens) == {first, second}
        assert text_of(deltas, end) == _shown(bytes(tokens))
        switch = end.timeline.eager_tokens
        cut += tokens[switch - 1 : switch + 1] == [first, second]
    assert cut > 0


def _shown(text: bytes) -> str:
    """What cannot be a character is replaced; one that the answer's end cuts short stays unsaid."""
    cut_short = text.endswith("é".encode()[:1])
    return text[: len(text) - cut_short].decode(errors="replace")
