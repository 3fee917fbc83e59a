"""The routes for whoever runs the gateway, and what holds for all routes."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.answer import Answers
from gateway.detokenizer import Vocabulary
from gateway.metrics import GatewayMetrics
from gateway.openai.api import Api
from gateway.openai.server import build_app, serve_http
from gateway.prompting import Prompting
from pdd.rpc.errors import ListenError
from tests.mesh.api.conftest import CARD, CONTEXT, Gateway, Start
from tests.unit.gateway_api.scripted import ScriptedGenerator, saying

TEXT = " the river ran to the sea."


async def test_health_says_the_process_lives_whatever_the_mesh_lacks(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, TEXT), missing=["main"]) as gateway, http.get(f"{gateway.http}/health") as reply:
        assert (reply.status, await reply.json()) == (200, {"status": "alive"})


async def test_ready_names_the_missing_roles(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, TEXT), missing=["prefill", "main"]) as gateway:
        async with http.get(f"{gateway.http}/ready") as reply:
            assert (reply.status, await reply.json()) == (503, {"status": "not ready", "missing": ["prefill", "main"]})
        gateway.generator.missing = ()
        async with http.get(f"{gateway.http}/ready") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ready"})


async def test_models_agree_with_ready(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, TEXT), missing=["main"]) as gateway:
        async with http.get(f"{gateway.http}/v1/models") as reply:
            assert await reply.json() == {"object": "list", "data": []}
        async with http.get(f"{gateway.http}/v1/models/pdd-sim") as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (503, "no_instance")
        gateway.generator.missing = ()
        async with http.get(f"{gateway.http}/v1/models/pdd-sim") as reply:
            assert (await reply.json())["max_model_len"] == CONTEXT


async def test_metrics_tell_of_a_request(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(saying(CARD, TEXT)) as gateway:
        body = {"model": "pdd-sim", "prompt": " the sea", "stream": True}
        async with http.post(f"{gateway.http}/v1/completions", json=body) as reply:
            await reply.read()
        async with http.get(f"{gateway.http}/metrics") as reply:
            assert reply.headers["content-type"].startswith("text/plain")
            families = {family.name: family for family in text_string_to_metric_families(await reply.text())}
    tokens = len(CARD.encode(TEXT)) + 1
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert samples["pdd_requests_total", "/v1/completions", "200", "ok"] == 1
    assert samples["pdd_time_to_first_token_seconds_count",] == 1
    assert samples["pdd_inter_token_latency_seconds_count",] == tokens - 1
    assert samples["pdd_output_tokens_total", "relay-0"] + samples["pdd_output_tokens_total", "main-0"] == tokens
    assert samples["pdd_prompt_tokens_total",] == 2


async def test_paths_nobody_knows_share_one_label(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for path in ("/a", "/b/c"):
        async with http.get(gateway.http + path) as reply:
            assert reply.status == 404
    assert gateway.count("pdd_requests_total", route="unknown", status="404") == 2


@pytest.mark.parametrize(
    ("given", "echoed"), [("mine-1", "mine-1"), ("", "n"), ("a b", "n"), ("x" * 129, "n"), ("x" * 128, "x" * 128)]
)
async def test_the_request_id_is_echoed_or_made(gateway: Gateway, http: aiohttp.ClientSession, given: str, echoed: str) -> None:
    for path in ("/health", "/nowhere"):
        async with http.get(gateway.http + path, headers={"x-request-id": given}) as reply:
            assert reply.headers["x-request-id"].startswith(echoed)


async def test_accepted_sockets_send_small_writes_at_once() -> None:
    answers = Answers(ScriptedGenerator(saying(CARD, TEXT)), Vocabulary(CARD.tokenizer), GatewayMetrics(CollectorRegistry()))
    api = Api(Prompting(CARD, lambda: CONTEXT, lambda _bits: 7), answers, lambda: "id", lambda: 0.0)
    app = build_app(api)
    seen: list[int] = []

    async def look(request: web.Request, _response: web.StreamResponse) -> None:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    app.on_response_prepare.append(look)
    async with serve_http("127.0.0.1:0", app) as address, aiohttp.ClientSession() as http:
        async with http.get(f"http://{address}/health") as reply:
            assert reply.status == 200
        with pytest.raises(ListenError, match=address):
            async with serve_http(address, build_app(api)):
                pass
    assert seen
    assert all(seen)
