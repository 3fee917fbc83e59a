"""Values that no request may have: each gets a clear error, costs little, and leaves others alone."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from pdd.sampling_proto import MAX_LOGIT_BIASES
from tests.mesh.api.conftest import CARD, Gateway, Start
from tests.unit.gateway_api.scripted import Hold, steps

CHAT = "/v1/chat/completions"
HELLO = b'"model":"pdd-sim","messages":[{"role":"user","content":"hi"}]'

TOO_MANY_BIASES = b'"logit_bias":{%b}' % b",".join(b'"%d":1' % token for token in range(10_000))


async def refused(http: aiohttp.ClientSession, gateway: Gateway, fields: bytes) -> dict[str, Any]:
    """The error of a chat request that is fine but for `fields`, which are raw JSON."""
    async with http.post(gateway.http + CHAT, data=b"{%b,%b}" % (HELLO, fields)) as reply:
        assert reply.status == 400
        error: dict[str, Any] = (await reply.json())["error"]
    assert error["type"] == "invalid_request_error"
    assert gateway.generator.specs == []
    return error


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
async def test_a_number_that_is_none_or_out_of_bounds_is_named(gateway: Gateway, http: aiohttp.ClientSession, field: str) -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0.001", "1e30", '"hot"', "[]", "true"):
        error = await refused(http, gateway, f'"{field}":{value}'.encode())
        assert error["param"] in (field, None)  # None where it is not even JSON
        assert error["message"]


ABSURD = [
    ("presence_penalty", "-2.01"),
    ("presence_penalty", "NaN"),
    ("frequency_penalty", "2.01"),
    ("frequency_penalty", "1e999"),
    ("top_k", "-2"),
    ("top_k", "4294967296"),
    ("top_k", "1.5"),
    ("max_tokens", "-1"),
    ("max_tokens", "1" + "0" * 30),
    ("max_tokens", "1" + "0" * 5000),
    ("min_tokens", "-1"),
    ("seed", "1" + "0" * 30),
    ("seed", "0.5"),
    ("logit_bias", '{"5":NaN}'),
    ("logit_bias", '{"5":101}'),
    ("logit_bias", '{"-5":1}'),
    ("logit_bias", '{"a":1}'),
    ("logit_bias", "[5]"),
]


async def test_an_absurd_value_is_named(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for field, value in ABSURD:
        error = await refused(http, gateway, f'"{field}":{value}'.encode())
        assert error["param"] is None or error["param"].startswith(field)
        assert len(error["message"]) < 500


async def test_ten_thousand_logit_biases_are_too_many(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    error = await refused(http, gateway, TOO_MANY_BIASES)
    assert error["param"] == "logit_bias"
    assert str(MAX_LOGIT_BIASES) in error["message"]


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_a_deep_value_is_no_valid_body(
    gateway: Gateway, http: aiohttp.ClientSession, opening: bytes, closing: bytes
) -> None:
    deep = opening * 15_000 + b"1" + closing * 15_000
    for field in (b"metadata", b"response_format", b"user", b"stop", b"logit_bias", b"seed"):
        assert (await refused(http, gateway, b'"%b":%b' % (field, deep)))["message"]


async def test_an_answer_goes_on_while_bad_requests_come(start: Start, http: aiohttp.ClientSession) -> None:
    go_on = asyncio.Event()
    ids = CARD.encode(" the sea and the sky")
    async with (
        start(lambda spec: [*steps(spec, ids)[:2], Hold(go_on), *steps(spec, ids)[2:]]) as gateway,
        http.post(gateway.http + CHAT, data=b'{%b,"stream":true}' % HELLO) as answer,
    ):
        assert answer.status == 200
        for bad in (TOO_MANY_BIASES, b'"temperature":NaN', b'"user":' + b"[" * 15_000 + b"]" * 15_000):
            async with http.post(gateway.http + CHAT, data=b"{%b,%b}" % (HELLO, bad)) as reply:
                assert reply.status == 400
        go_on.set()
        assert (await answer.text()).endswith("data: [DONE]\n\n")
