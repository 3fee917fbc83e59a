"""`python -m gateway` as a process: what it says, answers and leaves behind."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from pdd.catalog.embedded import embedded_valkey
from pdd.rpc.channel import open_channel
from pdd.v1 import inference_pb2, inference_pb2_grpc
from tests.support.process import ModuleProcess, running_module

pytestmark = pytest.mark.processes

ANY_PORTS = {"PDD_HTTP": "127.0.0.1:0", "PDD_LISTEN": "127.0.0.1:0", "PDD_ENGINE": "sim"}
CHAT = {"model": "pdd-sim", "messages": [{"role": "user", "content": "hi"}]}


async def ready(process: ModuleProcess) -> tuple[str, str]:
    line: dict[str, str] = json.loads(await process.until('"ready"'))
    return line["http"], line["grpc"]


async def test_without_instances_it_lives_and_is_not_ready(http: aiohttp.ClientSession) -> None:
    async with embedded_valkey() as redis_url, running_module("gateway", ANY_PORTS | {"PDD_REDIS_URL": redis_url}) as process:
        url, rpc = await ready(process)
        async with http.get(f"{url}/health") as reply:
            assert reply.status == 200
        async with http.get(f"{url}/ready") as reply:
            assert (reply.status, (await reply.json())["missing"]) == (503, ["prefill", "main"])
        async with http.post(f"{url}/v1/chat/completions", json=CHAT) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (503, "no_instance")
        async with open_channel(rpc) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            assert not (await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=10)).models
        process.signal(signal.SIGTERM)
        code, said = await process.end()
        assert (code, "Traceback" in said) == (0, False)


async def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with embedded_valkey() as redis_url:
            environment = ANY_PORTS | {"PDD_REDIS_URL": redis_url, "PDD_HTTP": address}
            async with running_module("gateway", environment) as process:
                code, said = await process.end()
    assert code == 1
    assert f"gateway: can't listen on {address}" in said
    assert "Traceback" not in said


async def test_a_missing_model_says_what_to_run(tmp_path: Path) -> None:
    environment = ANY_PORTS | {"PDD_ENGINE": "llama", "PDD_MODEL_DIR": str(tmp_path)}
    async with running_module("gateway", environment) as process:
        code, said = await process.end()
    assert code == 1
    assert "pdd model fetch" in said
    assert "Traceback" not in said


async def test_a_wrong_setting_is_named_and_exit_code_2() -> None:
    async with running_module("gateway", ANY_PORTS | {"PDD_ENGINE": "vllm"}) as process:
        code, said = await process.end()
    assert code == 2
    assert "PDD_ENGINE" in said
