"""What clients are told of routing, and may say to it: the plan, how long an answer will be, and what the mesh does without."""

from __future__ import annotations

import aiohttp
import pytest

from tests.mesh.api.conftest import CARD, Gateway, Start
from tests.unit.gateway_api.scripted import saying

COMPLETION = ("/v1/completions", {"model": "pdd-sim", "prompt": " the sea"})
CHAT = ("/v1/chat/completions", {"model": "pdd-sim", "messages": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
async def test_an_answer_says_by_what_plan_it_was_made(
    gateway: Gateway, http: aiohttp.ClientSession, path: str, body: dict[str, object], stream: bool
) -> None:
    async with http.post(gateway.http + path, json=body | {"stream": stream}) as reply:
        assert reply.status == 200
        assert reply.headers["x-pdd-plan"] == "pipeline=direct; reason=scripted"
        await reply.read()


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
async def test_a_client_may_say_how_long_its_answer_will_be(
    gateway: Gateway, http: aiohttp.ClientSession, path: str, body: dict[str, object]
) -> None:
    for headers in ({}, {"x-pdd-expected-tokens": "1"}, {"X-PDD-Expected-Tokens": "000000050"}):
        async with http.post(gateway.http + path, json=body, headers=headers) as reply:
            assert reply.status == 200
    assert [spec.expected_tokens for spec in gateway.generator.specs] == [None, 1, 50]


@pytest.mark.parametrize("value", ["", "0", "-1", "+5", "1.5", "1e3", "0x10", "many", "5 0", "²", "1" * 10])
@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
async def test_a_guess_that_is_no_number_of_tokens_is_refused(
    gateway: Gateway, http: aiohttp.ClientSession, path: str, body: dict[str, object], value: str
) -> None:
    async with http.post(gateway.http + path, json=body, headers={"x-pdd-expected-tokens": value}) as reply:
        assert reply.status == 400
        error = (await reply.json())["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "x-pdd-expected-tokens")
    assert "at least 1" in error["message"]
    assert gateway.generator.specs == []


async def test_ready_says_what_the_mesh_does_without(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, " the sea")) as gateway:
        gateway.generator.without = ("prefix catalog: it is away",)
        async with http.get(f"{gateway.http}/ready") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ready", "degraded": ["prefix catalog: it is away"]})
        gateway.generator.missing = ("main",)
        async with http.get(f"{gateway.http}/ready") as reply:
            assert (reply.status, await reply.json()) == (503, {"status": "not ready", "missing": ["main"]})
