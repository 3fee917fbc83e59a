"""Requests over a real prefill, relay and main: whoever makes a token, the text is the reference's, and nothing stays held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.generation import End, MeshError, MeshErrorCode, Tokens, Usage
from pdd.engine.base import FinishReason
from pdd.engine.sim.reference import continuation
from pdd.engine.sim.vocabulary import sim_vocabulary
from tests.mesh.gateway.asking import OUTPUT, PROMPT, spec
from tests.mesh.gateway.site import Collected, Site, collect, running_site
from tests.mesh.services.instances import BLOCK_TOKENS, FAST


async def answered(site: Site, prompt_tokens: int = PROMPT, max_tokens: int = OUTPUT, text: int = 0) -> Collected:
    asked = spec(prompt_tokens, max_tokens, text)
    answer = await collect(site.mesh, asked)
    assert answer.tokens == continuation(asked.prompt, max_tokens, ignore_eos=True)
    assert answer.end.reason is FinishReason.LENGTH
    assert answer.end.usage == Usage(prompt_tokens, max_tokens, 0)
    return answer


@pytest.mark.parametrize("handoff", ["one_shot", "catch_up", "auto"])
async def test_the_text_has_no_seam(handoff: str) -> None:
    # A target that one extend of all eager ids does not meet, so that Catch-Up has something to do.
    async with running_site(handoff=handoff, itl_target_ms=15.0) as site:
        answer = await answered(site)
        timeline = answer.end.timeline
        assert answer.made_by("prefill-0") == 1
        assert answer.made_by("relay-0") >= 5
        assert answer.made_by("main-0") >= 5
        assert answer.sources == sorted(answer.sources, key=["prefill-0", "relay-0", "main-0"].index)
        assert timeline.eager_tokens == OUTPUT - answer.made_by("main-0")
        assert timeline.main_computed_tokens == PROMPT % BLOCK_TOKENS + timeline.eager_tokens
        assert timeline.wan_kv_bytes == PROMPT // BLOCK_TOKENS * site.mains[0].engine.layout.block_bytes
        assert timeline.switch_gap_s > 0
        if handoff != "auto":
            assert timeline.handoff == handoff
        names = [span.name for span in timeline.spans]
        assert (names.count("extend") > 1) == (timeline.handoff == "catch_up")
        assert {"prefill", "transfer.relay", "transfer.main", "relay", "extend", "main"} == set(names)
        assert site.observed.handoffs == [timeline]
        await site.until_free()


async def test_direct_needs_no_relay() -> None:
    async with running_site(pipeline="direct") as site:
        answer = await answered(site)
        assert (answer.made_by("prefill-0"), answer.made_by("main-0")) == (1, OUTPUT - 1)
        assert (answer.end.timeline.pipeline, answer.end.timeline.handoff) == ("direct", "")
        await site.until_free()


@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17])
@pytest.mark.parametrize("pipeline", ["relay", "direct"])
async def test_prompts_around_one_block(prompt_tokens: int, pipeline: str) -> None:
    async with running_site(pipeline=pipeline) as site:
        await answered(site, prompt_tokens, 40)
        await site.until_free()


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@pytest.mark.parametrize("pipeline", ["relay", "direct"])
async def test_answers_of_a_few_tokens(max_tokens: int, pipeline: str) -> None:
    async with running_site(FAST, pipeline=pipeline) as site:
        await answered(site, PROMPT, max_tokens)
        await site.until_free()


async def test_end_of_sequence_wherever_it_falls() -> None:
    # About one token in 80 ends it: on the relay, around the switch, on main.
    eos = sim_vocabulary().eos_id
    ending: dict[str, Any] = {"ignore_eos": False, "eos_ids": (eos,), "logit_bias": ((eos, 30.0),), "temperature": 1.0}
    makers, reasons = set(), set()
    async with running_site(handoff="catch_up", itl_target_ms=15.0) as site:
        for text in range(8):
            answer = await collect(site.mesh, spec(PROMPT, 60, text, **ending))
            assert eos not in answer.tokens
            assert (len(answer.tokens) == 60) == (answer.end.reason is FinishReason.LENGTH)
            assert answer.end.usage.completion_tokens == len(answer.tokens)
            makers.add(answer.sources[-1])
            reasons.add(answer.end.reason)
        await site.until_free()
    assert len(makers) > 1
    assert FinishReason.STOP in reasons


@pytest.mark.parametrize("pipeline", ["relay", "direct"])
async def test_an_answer_may_be_empty(pipeline: str) -> None:
    eos = sim_vocabulary().eos_id
    async with running_site(pipeline=pipeline) as site:
        answer = await collect(site.mesh, spec(ignore_eos=False, eos_ids=(eos,), logit_bias=((eos, 100.0),)))
        assert (answer.tokens, answer.end.reason, answer.end.usage) == ([], FinishReason.STOP, Usage(PROMPT, 0, 0))
        await site.until_free()


async def test_many_requests_at_once() -> None:
    async with running_site(handoff="auto", itl_target_ms=15.0) as site:
        async with asyncio.TaskGroup() as tasks:
            for text in range(6):
                tasks.create_task(answered(site, PROMPT, 60, text))
        await site.until_free()
        assert site.observed.dropped == {}


async def test_requests_go_to_the_idler_main() -> None:
    async with running_site(FAST, mains=2, pipeline="direct") as site:
        async with site.mesh.generate(spec(max_tokens=2000)), site.mesh.generate(spec(max_tokens=2000)):
            pass
        chosen = [plan.main.instance.id for plan in site.observed.plans if plan.main is not None]
        assert chosen == ["main-0", "main-1"]
        await site.until_free()


async def test_logprobs_come_with_every_token_across_the_switch() -> None:
    async with running_site(handoff="one_shot") as site, site.mesh.generate(spec(top_logprobs=2)) as generation:
        counted = 0
        async for item in generation:
            if isinstance(item, Tokens):
                assert len(item.logprobs) == len(item.tokens)
                assert all(len(logprobs.top) == 2 for logprobs in item.logprobs)
                counted += len(item.tokens)
        assert counted == OUTPUT


@pytest.mark.parametrize("seen", ["prefill-0", "relay-0", "main-0"])
async def test_a_stop_string_ends_a_request_as_finished(seen: str) -> None:
    async with running_site(handoff="one_shot") as site:
        asked = spec(PROMPT, 2000)
        shown, end = 0, None
        async with site.mesh.generate(asked) as generation:
            async for item in generation:
                if isinstance(item, End):
                    end = item
                    continue
                assert end is None
                shown += len(item.tokens)
                if item.source == seen:
                    generation.stop()
        assert end is not None
        assert end.reason is FinishReason.STOP
        assert end.usage == Usage(PROMPT, shown, 0)
        await site.until_free()


@pytest.mark.parametrize("seen", [None, "prefill-0", "relay-0", "main-0"])
async def test_a_client_that_leaves_frees_everything(seen: str | None) -> None:
    async with running_site(handoff="catch_up", itl_target_ms=15.0) as site:
        async with site.mesh.generate(spec(PROMPT, 2000)) as generation:
            if seen is not None:
                async for item in generation:
                    if isinstance(item, Tokens) and item.source == seen:
                        break
        await site.until_free()
        await answered(site)


async def test_a_cancelled_reader_frees_everything() -> None:
    async with running_site() as site:
        reading = asyncio.create_task(collect(site.mesh, spec(PROMPT, 2000)))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await site.until_free()


async def test_a_client_that_does_not_read_is_cut_off_and_harms_nobody() -> None:
    async with running_site(unread_tokens=20) as site, site.mesh.generate(spec(PROMPT, 2000)) as slow:
        await answered(site, PROMPT, 60, text=1)
        await site.until_free()
        with pytest.raises(MeshError, match="20 tokens unread") as raised:
            async for _ in slow:
                pass
        assert raised.value.code is MeshErrorCode.OVERLOADED
