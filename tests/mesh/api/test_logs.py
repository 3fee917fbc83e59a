"""What the public APIs log of a request: which one it was, and nothing of what was asked or answered."""

from __future__ import annotations

from typing import Any

import aiohttp
import grpc
import pytest
from structlog.testing import capture_logs

from gateway.generation import MeshError, MeshErrorCode
from pdd.rpc.channel import open_channel
from pdd.v1 import inference_pb2, inference_pb2_grpc
from tests.mesh.api.conftest import CARD, Start
from tests.unit.gateway_api.scripted import Script, steps

ASKED, ANSWERED = "marzipan", " the river ran to the sea."
LABEL = "asked-by-a-test"
LOST = MeshError(MeshErrorCode.PEER_LOST, "main-0 was lost")


NOTHING: Any = None  # that a mesh never gives, and the gateway breaks on

FAULTS: dict[str, Script] = {
    "the mesh fails": lambda _spec: [LOST],
    "the mesh fails later": lambda spec: [*steps(spec, CARD.encode(ANSWERED))[:2], LOST],
    "the gateway breaks": lambda _spec: [NOTHING],
    "the gateway breaks later": lambda spec: [*steps(spec, CARD.encode(ANSWERED))[:2], NOTHING],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_request_over_http_is_named_and_not_quoted(start: Start, http: aiohttp.ClientSession, fault: str) -> None:
    body = {"model": "pdd-sim", "prompt": ASKED, "stream": True}
    with capture_logs() as logs:
        async with start(FAULTS[fault]) as gateway:
            url = f"{gateway.http}/v1/completions"
            async with http.post(url, json=body, headers={"x-request-id": LABEL}) as reply:
                await reply.read()
    assert logs
    assert {line.get("request") for line in logs} == {LABEL}
    assert not any(said in str(logs) for said in (ASKED, ANSWERED.split()[1]))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_request_over_grpc_is_named_and_not_quoted(start: Start, fault: str) -> None:
    with capture_logs() as logs:
        async with start(FAULTS[fault]) as gateway, open_channel(gateway.grpc) as channel:
            request = inference_pb2.GenerateRequest(prompt=ASKED)
            call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=20, metadata=(("x-request-id", LABEL),))
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
    assert logs
    assert {line.get("request") for line in logs} == {LABEL}
    assert not any(said in str(logs) for said in (ASKED, ANSWERED.split()[1]))
