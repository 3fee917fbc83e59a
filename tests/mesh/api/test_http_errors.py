"""What goes wrong over HTTP, seen by a client that may send anything."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from gateway.generation import MeshError, MeshErrorCode
from tests.mesh.api.conftest import CARD, CONTEXT, Gateway, Start
from tests.unit.gateway_api.scripted import Step, saying, steps

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY = {"model": "pdd-sim", "messages": [{"role": "user", "content": "hi"}]}


async def post(http: aiohttp.ClientSession, url: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url, data=data, headers={"content-type": "application/json"} | headers) as reply:
        answer = await reply.json()
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert reply.headers["x-request-id"]
        return reply.status, answer["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 50_000, b'{"a":' * 16_000])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_malformed_bodies_get_400(gateway: Gateway, http: aiohttp.ClientSession, path: str, body: bytes) -> None:
    status, error = await post(http, gateway.http + path, body)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": "hi"}, "messages"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"wat": 1}, "wat"),
    ],
)
async def test_a_wrong_field_of_chat_gets_400_and_is_named(
    gateway: Gateway, http: aiohttp.ClientSession, fields: dict[str, object], param: str
) -> None:
    status, error = await post(http, gateway.http + CHAT, BODY | fields)
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(param)
    assert gateway.generator.specs == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
    ],
)
async def test_a_wrong_field_of_completions_gets_400_and_is_named(
    gateway: Gateway, http: aiohttp.ClientSession, fields: dict[str, object], param: str
) -> None:
    status, error = await post(http, gateway.http + TEXT, {"model": "pdd-sim", "prompt": "hi"} | fields)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": " the" * CONTEXT}, "prompt"),
        ({"prompt": [1] * CONTEXT}, "prompt"),
        ({"prompt": "x" * 90_000}, "prompt"),
        ({"prompt": [1] * 10, "max_tokens": CONTEXT - 9}, "max_tokens"),
    ],
)
async def test_more_than_the_context_gets_400(
    gateway: Gateway, http: aiohttp.ClientSession, body: dict[str, object], param: str
) -> None:
    status, error = await post(http, gateway.http + TEXT, {"model": "pdd-sim"} | body)
    assert (status, error["param"], error["code"]) == (400, param, "context_length_exceeded")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}] * 2_000,
        [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2_000}],
        [{"role": "user", "content": "a" * 90_000}],
    ],
    ids=["messages", "parts", "characters"],
)
async def test_a_conversation_far_over_the_context_gets_400_unread(
    gateway: Gateway, http: aiohttp.ClientSession, messages: object, unread: None
) -> None:
    status, error = await post(http, gateway.http + CHAT, BODY | {"messages": messages})
    assert (status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")


async def test_prompt_and_max_tokens_that_just_fit_are_served(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    body = {"model": "pdd-sim", "prompt": [1] * 10, "max_tokens": CONTEXT - 10}
    async with http.post(gateway.http + TEXT, json=body) as reply:
        assert reply.status == 200


async def test_an_unknown_model_gets_404(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, error = await post(http, gateway.http + CHAT, BODY | {"model": "gpt-5"})
    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")


async def test_unknown_routes_and_methods_get_the_same_shape(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, error = await post(http, gateway.http + "/v1/embeddings", BODY)
    assert (status, error["code"]) == (404, "unknown_url")
    async with http.get(gateway.http + CHAT) as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")
        assert (await reply.json())["error"]["code"] == "method_not_allowed"


async def test_a_body_over_the_bound_gets_413(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, error = await post(http, gateway.http + CHAT, b" " * 100_001)
    assert (status, error["code"]) == (413, "request_too_large")


async def test_a_compressed_body_is_bounded_by_what_it_holds(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    status, _ = await post(http, gateway.http + CHAT, bomb, **{"content-encoding": "gzip"})
    assert status == 413


async def test_a_body_that_is_not_what_it_says_gets_400(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, error = await post(http, gateway.http + CHAT, b"not gzip", **{"content-encoding": "gzip"})
    assert (status, error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (MeshErrorCode.NO_INSTANCE, 503, "server_error"),
        (MeshErrorCode.PEER_LOST, 502, "server_error"),
        (MeshErrorCode.KV_REFUSED, 502, "server_error"),
        (MeshErrorCode.ENGINE_FAILED, 500, "server_error"),
        (MeshErrorCode.OVERLOADED, 429, "rate_limit_error"),
        (MeshErrorCode.DEADLINE, 504, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_of_the_mesh_before_the_first_byte_has_a_status(
    start: Start, http: aiohttp.ClientSession, code: MeshErrorCode, status: int, kind: str, stream: bool
) -> None:
    async with start(lambda _spec: [MeshError(code, "prefill-0 said so")]) as gateway:
        seen, error = await post(http, gateway.http + CHAT, BODY | {"stream": stream})
        assert (seen, error["type"], error["code"], error["message"]) == (status, kind, code.value, "prefill-0 said so")
        assert gateway.generator.running == 0
        assert gateway.count("pdd_mesh_errors_total", code=code.value) == 1
        assert gateway.count("pdd_requests_total", route=CHAT, status=str(status)) == 1


@pytest.mark.parametrize(
    ("code", "after"), [(MeshErrorCode.OVERLOADED, "1"), (MeshErrorCode.NO_INSTANCE, "2"), (MeshErrorCode.PEER_LOST, None)]
)
async def test_an_error_that_passes_says_when_to_ask_again(
    start: Start, http: aiohttp.ClientSession, code: MeshErrorCode, after: str | None
) -> None:
    async with (
        start(lambda _spec: [MeshError(code, "so")]) as gateway,
        http.post(gateway.http + CHAT, json=BODY) as reply,
    ):
        assert reply.headers.get("Retry-After") == after


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_error_after_the_first_byte_is_an_event_and_the_end(
    start: Start, http: aiohttp.ClientSession, path: str
) -> None:
    lost = MeshError(MeshErrorCode.PEER_LOST, "main-0 was lost")
    body = BODY if path == CHAT else {"model": "pdd-sim", "prompt": "hi"}
    async with start(lambda spec: [*steps(spec, CARD.encode(" the sea and the sky"))[:2], lost]) as gateway:
        async with http.post(gateway.http + path, json=body | {"stream": True}) as reply:
            assert reply.status == 200
            events = (await reply.text()).split("\n\n")
        assert events[-1] == ""
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert (error["message"], error["type"], error["code"]) == ("main-0 was lost", "server_error", "peer_lost")
        assert gateway.count("pdd_requests_total", route=path, status="502") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_generation_that_stops_without_its_end_is_no_answer(
    start: Start, http: aiohttp.ClientSession, stream: bool
) -> None:
    def script(spec: Any) -> list[Step]:
        return steps(spec, CARD.encode(" the sea and the sky"))[:-1]

    async with start(script) as gateway, http.post(gateway.http + CHAT, json=BODY | {"stream": stream}) as reply:
        text = await reply.text()
        assert reply.status == (200 if stream else 500)
        assert '"internal_error"' in text
        assert "[DONE]" not in text


async def test_many_bad_requests_leave_the_next_good_one_alone(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    await asyncio.gather(*(post(http, gateway.http + CHAT, b"[" * 50_000) for _ in range(20)))
    async with http.post(gateway.http + CHAT, json=BODY) as reply:
        assert reply.status == 200
    assert gateway.count("pdd_requests_total", route=CHAT, status="400") == 20
    assert gateway.count("pdd_requests_total", route=CHAT, status="200") == 1
    assert gateway.count("pdd_requests_running", route=CHAT) == 0


async def test_a_request_that_needs_no_answer_text_is_served(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, "")) as gateway, http.post(gateway.http + CHAT, json=BODY) as reply:
        assert (await reply.json())["choices"][0]["message"]["content"] == ""
