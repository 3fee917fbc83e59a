"""What the user of a relayed answer sees of the switch, and of the lead that hides it. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.generation import End, GenerationSpec, Tokens
from gateway.playout import STRETCH
from pdd.engine.base import FinishReason
from tests.eventually import eventually
from tests.mesh.gateway.moments import LINE, OUTPUT, RTT_S, STEP_S, answer, answers, asked, mesh_spec
from tests.mesh.virtual.alone import alone
from tests.mesh.virtual.asking import Answer
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh
from wan.link import LinkSettings

SLOW_TURN = 0.0115  # s; a decode step, a tenth, and what a frame takes on its way
WAY = pytest.mark.parametrize("handoff", ["one_shot", "catch_up", "auto"])


def timeline_gaps(found: Answer) -> tuple[float, float]:
    assert found.end is not None
    return found.end.timeline.switch_gap_s, found.end.timeline.user_gap_s


@WAY
def test_the_user_waits_less_than_main_makes_the_gateway_wait(handoff: str) -> None:
    found = answer(mesh_spec(handoff=handoff), asked())
    raw_s, user_s = timeline_gaps(found)
    assert raw_s >= RTT_S + STEP_S
    # The lead is 5 or 6 tokens: a round trip and a step are hidden, the compute of a long extend beyond them is not.
    assert user_s <= max(SLOW_TURN, raw_s - RTT_S - STEP_S + SLOW_TURN)
    eager = found.made_by("prefill") + found.made_by("relay")
    around = found.gaps_s[eager - 8 : eager]
    assert max(around) == pytest.approx(user_s, abs=1e-4) or max(around) <= 0.0155  # as far as Catch-Up throttles the relay


@WAY
def test_a_whole_answer_is_not_held_back(handoff: str) -> None:
    found = answer(mesh_spec(handoff=handoff), asked(streaming=False))
    raw_s, user_s = timeline_gaps(found)
    assert user_s == raw_s
    assert max(found.gaps_s) == pytest.approx(raw_s)


@WAY
def test_the_lead_costs_nothing_at_the_end(handoff: str) -> None:
    streamed, whole = (answer(mesh_spec(handoff=handoff), asked(streaming=streaming)) for streaming in (True, False))
    assert streamed.tokens == whole.tokens
    assert streamed.arrived_s[-1] == pytest.approx(whole.arrived_s[-1], abs=1e-9)
    assert streamed.ttft_s == pytest.approx(whole.ttft_s, abs=1e-9)


@pytest.mark.parametrize("tokens", [1, 2, 3, 6, 20])
def test_a_short_answer_ends_when_its_last_token_is_made(tokens: int) -> None:
    streamed, whole = (answer(mesh_spec(), asked(max_tokens=tokens, streaming=streaming)) for streaming in (True, False))
    assert streamed.tokens == whole.tokens
    assert len(streamed.tokens) == tokens
    assert streamed.arrived_s[-1] == pytest.approx(whole.arrived_s[-1], abs=1e-9)


def test_the_lead_is_built_no_slower_than_by_a_tenth() -> None:
    found = answer(mesh_spec(handoff="one_shot"), asked())
    relayed = [gap for gap, source in zip(found.gaps_s[1:], found.sources[2:], strict=True) if source == "relay-0"]
    assert max(relayed) <= SLOW_TURN
    assert max(found.gaps_s[2:30]) == pytest.approx(STRETCH * STEP_S, rel=0.05)


def test_direct_answers_are_not_held_back() -> None:
    spec = mesh_spec(pipeline="direct")
    streamed, whole = (answer(spec, asked(streaming=streaming)) for streaming in (True, False))
    assert streamed.arrived_s == whole.arrived_s
    assert timeline_gaps(streamed) == (0.0, 0.0)


def test_a_switch_that_comes_before_the_lead_shows_what_is_left() -> None:
    early = answer(mesh_spec(line=replace(LINE, rate_mbit=1000.0), handoff="one_shot"), asked())
    raw_s, user_s = timeline_gaps(early)
    assert early.made_by("relay") < 20
    assert STEP_S < user_s < raw_s


@pytest.mark.parametrize("rtt_ms", [10.0, 100.0, 200.0])
def test_the_first_request_knows_the_round_trip_from_mains_hello(rtt_ms: float) -> None:
    line = LinkSettings(rate_mbit=8.0, rtt_ms=rtt_ms)
    found = answer(mesh_spec(line=line, handoff="catch_up"), asked(max_tokens=500))
    raw_s, user_s = timeline_gaps(found)
    assert raw_s >= rtt_ms / 1000 + STEP_S
    assert user_s <= 2 * STEP_S


def test_a_lead_is_known_from_the_requests_before() -> None:
    """The relay's pace, too, is remembered: the second answer is held back by it from its first token on."""
    slow = mesh_spec(handoff="one_shot", line=replace(LINE, rate_mbit=20.0))
    first, second = answers(slow, [asked(max_tokens=150), asked(max_tokens=150, text=1)])
    assert first.gaps_s[0] > 0.019  # as is believed of any relay
    assert second.gaps_s[0] == pytest.approx(STRETCH * STEP_S, rel=0.1)


async def _read_until(
    spec: MeshSpec, stop_at: Callable[[Tokens], bool], leave: bool, **changes: Any
) -> tuple[list[int], End | None, float]:
    """The tokens up to the one at which the client stops the answer, or leaves it, the end, and how long that took to come."""
    request = asked(**changes)
    async with running_mesh(spec) as mesh:
        clock = asyncio.get_running_loop().time
        tokens: list[int] = []
        end, stopped_s = None, 0.0
        async with mesh.gateway.generate(GenerationSpec(request.prompt, request.sampling, "test")) as generation:
            async for item in generation:
                if isinstance(item, End):
                    end = item
                    break
                tokens += item.tokens
                if stop_at(item):
                    stopped_s = clock()
                    if leave:
                        break
                    generation.stop()
        took_s = clock() - stopped_s
        await eventually(lambda: mesh.holds_nothing)
        await asyncio.sleep(1.0)  # for a timer that was forgotten
        return tokens, end, took_s


@pytest.mark.parametrize("leave", [False, True], ids=["stop", "leave"])
@pytest.mark.parametrize("index", [0, 1, 10, 50, 56, 57, 58, 59, 60, 61, 62])  # building, holding, switching, draining
def test_an_early_end_drops_what_is_held_back_at_once(index: int, leave: bool) -> None:
    tokens, end, took_s = run(
        _read_until, mesh_spec(handoff="one_shot"), lambda item: item.first_index + len(item.tokens) > index, leave
    )
    assert took_s == 0.0
    assert tuple(tokens) == alone(asked().prompt, asked().sampling).tokens[: len(tokens)]
    assert len(tokens) < OUTPUT
    if not leave:
        assert end is not None
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, len(tokens))
