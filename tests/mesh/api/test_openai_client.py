"""OpenAI's own Python client against the gateway."""

from __future__ import annotations

import openai
import pytest

from gateway.generation import MeshError, MeshErrorCode
from tests.mesh.api.conftest import CARD, NOW_S, Gateway, Start
from tests.unit.gateway_api.scripted import saying, steps

TEXT = " the river ran to the sea."
TOKENS = len(CARD.encode(TEXT)) + 1  # and end-of-sequence
ASK = [{"role": "user", "content": "hi there"}]
PROMPT_TOKENS = len(CARD.encode(CARD.render_chat(ASK)))


async def test_chat_in_one_piece(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        answer = await client.chat.completions.create(model="pdd-sim", messages=[{"role": "user", "content": "hi there"}])
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert choice.logprobs is None
    assert (answer.object, answer.model, answer.created) == ("chat.completion", "pdd-sim", int(NOW_S))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, TOKENS)
    assert answer.usage.total_tokens == PROMPT_TOKENS + TOKENS


async def test_chat_streamed(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        stream = await client.chat.completions.create(
            model="pdd-sim", messages=[{"role": "user", "content": "hi there"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert gateway.generator.running == 0


async def test_usage_comes_in_one_last_chunk_without_choices(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        stream = await client.chat.completions.create(
            model="pdd-sim",
            messages=[{"role": "user", "content": "hi there"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        *others, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (PROMPT_TOKENS, TOKENS)
    assert all(chunk.choices and chunk.usage is None for chunk in others)


async def test_completion_in_one_piece(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        answer = await client.completions.create(model="pdd-sim", prompt=" the river")
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == ("text_completion", TEXT, "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, TOKENS)


async def test_completion_of_token_ids_streamed_with_usage(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        stream = await client.completions.create(
            model="pdd-sim", prompt=[5, 6, 7], stream=True, stream_options={"include_usage": True}
        )
        *others, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in others) == TEXT
    assert others[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, TOKENS)
    assert gateway.generator.specs[0].prompt == (5, 6, 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_over_the_handoff_ends_the_text_before_it(gateway: Gateway, stream: bool) -> None:
    ids = CARD.encode(TEXT)
    handoff = CARD.tokenizer.decode(ids[: TOKENS // 2]), CARD.tokenizer.decode(ids[TOKENS // 2 :])
    stop = handoff[0][-3:] + handoff[1][:3]  # the last the relay said and the first of main
    async with gateway.openai() as client:
        text, finish, completion_tokens = await _ask(client, stream, stop)
    assert (text, finish) == (TEXT.partition(stop)[0], "stop")
    assert completion_tokens == TOKENS // 2 + 1
    assert gateway.generator.stopped == 1


async def _ask(client: openai.AsyncOpenAI, stream: bool, stop: str) -> tuple[str, str | None, int]:
    if not stream:
        whole = await client.completions.create(model="pdd-sim", prompt="hi", stop=stop)
        assert whole.usage is not None
        return whole.choices[0].text, whole.choices[0].finish_reason, whole.usage.completion_tokens
    events = await client.completions.create(
        model="pdd-sim", prompt="hi", stop=[stop, "never"], stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in events]
    assert last.usage is not None
    text = "".join(chunk.choices[0].text for chunk in chunks)
    return text, chunks[-1].choices[0].finish_reason, last.usage.completion_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_chat_logprobs_have_one_entry_per_completion_token(gateway: Gateway, stream: bool) -> None:
    async with gateway.openai() as client:
        if stream:
            events = await client.chat.completions.create(
                model="pdd-sim", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2, stream=True
            )
            parts = [part async for event in events if (part := event.choices[0].logprobs)]
            entries = [entry for part in parts for entry in part.content or []]
        else:
            whole = await client.chat.completions.create(
                model="pdd-sim", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2
            )
            assert whole.choices[0].logprobs is not None
            entries = whole.choices[0].logprobs.content or []
    assert "".join(entry.token for entry in entries) == TEXT + "<|im_end|>"
    assert len(entries) == TOKENS
    for entry in entries:
        assert bytes(entry.bytes or []) == entry.token.encode()
        assert [likely.logprob for likely in entry.top_logprobs] == [-0.5, -1.5]
        assert entry.top_logprobs[0].token == entry.token


@pytest.mark.parametrize("stream", [True, False])
async def test_completion_logprobs_have_offsets_into_the_text(gateway: Gateway, stream: bool) -> None:
    async with gateway.openai() as client:
        if stream:
            events = await client.completions.create(model="pdd-sim", prompt="hi", logprobs=1, stream=True)
            found = [event.choices[0].logprobs async for event in events]
        else:
            whole = await client.completions.create(model="pdd-sim", prompt="hi", logprobs=1)
            found = [whole.choices[0].logprobs]
    parts = [part for part in found if part is not None]
    tokens = [token for part in parts for token in part.tokens or []]
    offsets = [offset for part in parts for offset in part.text_offset or []]
    assert "".join(tokens) == TEXT + "<|im_end|>"
    text_tokens = list(zip(tokens[:-1], offsets[:-1], strict=True))
    assert all(TEXT[offset : offset + len(token)] == token for token, offset in text_tokens)
    assert [value for part in parts for value in part.token_logprobs or []] == [-0.5] * TOKENS
    assert all(len(top) == 1 for part in parts for top in part.top_logprobs or [])


async def test_a_character_over_the_handoff_comes_whole_and_its_tokens_are_told_as_bytes(start: Start) -> None:
    async with start(saying(CARD, "é")) as gateway, gateway.openai() as client:
        stream = await client.chat.completions.create(
            model="pdd-sim", messages=[{"role": "user", "content": "hi"}], logprobs=True, max_tokens=2, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "é", None]
    entries = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content or []]
    assert [entry.token for entry in entries] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert bytes(byte for entry in entries for byte in entry.bytes or []) == "é".encode()
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_an_answer_without_text_still_tells_role_and_reason(start: Start) -> None:
    async with start(saying(CARD, "")) as gateway, gateway.openai() as client:
        stream = await client.chat.completions.create(model="pdd-sim", messages=[{"role": "user", "content": "hi"}], stream=True)
        chunks = [chunk async for chunk in stream]
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_options_reach_the_mesh(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        answer = await client.chat.completions.create(
            model="pdd-sim",
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=3,
            seed=11,
            temperature=0.8,
            logit_bias={"5": -1},
            extra_body={"top_k": 4, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True, "repetition_penalty": 1.5},
            extra_headers={"x-request-id": "mine-1"},
        )
    assert answer.choices[0].finish_reason == "length"
    (spec,) = gateway.generator.specs
    params = spec.sampling
    assert spec.label == "mine-1"
    assert (params.max_tokens, params.seed, params.temperature, params.logit_bias) == (3, 11, 0.8, ((5, -1.0),))
    assert (params.top_k, params.min_p, params.min_tokens, params.ignore_eos) == (4, 0.1, 2, True)
    assert (params.repetition_penalty, params.eos_ids) == (1.5, CARD.eos_ids)


async def test_models_are_listed_and_found(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        assert [model.id for model in (await client.models.list()).data] == ["pdd-sim"]
        assert (await client.models.retrieve("pdd-sim")).owned_by == "pdd"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other/model")


async def test_the_clients_error_classes_fit(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.completions.create(model="gpt-5", prompt="hi")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="pdd-sim", prompt="hi", n=2)
    assert unknown.value.code == "model_not_found"
    assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")


async def test_a_stream_that_breaks_raises_in_the_client(start: Start) -> None:
    lost = MeshError(MeshErrorCode.PEER_LOST, "main-0 was lost")
    async with start(lambda spec: [*steps(spec, CARD.encode(TEXT))[:3], lost]) as gateway, gateway.openai() as client:
        stream = await client.chat.completions.create(model="pdd-sim", messages=[{"role": "user", "content": "hi"}], stream=True)
        with pytest.raises(openai.APIError, match="main-0 was lost"):
            [chunk async for chunk in stream]
