"""`python -m gateway` with several workers as a process: what it says, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from pdd.catalog.embedded import embedded_valkey
from tests.processes.program import all_gone, children_of
from tests.support.process import ModuleProcess, running_module

pytestmark = pytest.mark.processes

TWO = {"PDD_HTTP": "127.0.0.1:0", "PDD_LISTEN": "127.0.0.1:0", "PDD_ENGINE": "sim", "PDD_WORKERS": "2"}


async def ready(process: ModuleProcess) -> dict[str, str]:
    line: dict[str, str] = json.loads(await process.until('"ready"'))
    return line


async def test_both_take_the_same_ports_and_sigterm_leaves_nothing(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    own = {"TMPDIR": str(tmp_path)}
    async with embedded_valkey() as redis_url, running_module("gateway", TWO | own | {"PDD_REDIS_URL": redis_url}) as process:
        first, second = await ready(process), await ready(process)
        assert (first["instance"], second["instance"]) == ("gateway-0", "gateway-1")
        assert (first["http"], first["grpc"]) == (second["http"], second["grpc"])
        workers = children_of(process.process.pid)
        assert len(workers) == 2
        async with http.get(f"{first['http']}/health") as reply:
            assert reply.status == 200
        assert os.listdir(tmp_path)
        process.process.send_signal(signal.SIGTERM)
        code, said = await process.end()
        assert (code, "Traceback" in said) == (0, False)
        assert all_gone(workers)()
        assert not os.listdir(tmp_path)


async def test_one_worker_has_no_parent_and_no_files(tmp_path: Path) -> None:
    async with embedded_valkey() as redis_url:
        one = TWO | {"PDD_WORKERS": "1", "PDD_REDIS_URL": redis_url, "TMPDIR": str(tmp_path)}
        async with running_module("gateway", one) as process:
            assert (await ready(process))["instance"] == "gateway"
            assert not children_of(process.process.pid)
            assert not os.listdir(tmp_path)


async def test_a_port_in_use_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with running_module("gateway", TWO | {"PDD_HTTP": address}) as process:
            code, said = await process.end()
    assert code == 1
    (line,) = said.splitlines()
    assert line.startswith(f"gateway: can't listen on {address}: Address already in use")


async def test_what_keeps_a_worker_from_starting_is_said_once(tmp_path: Path) -> None:
    environment = TWO | {"PDD_ENGINE": "llama", "PDD_MODEL_DIR": str(tmp_path)}
    async with running_module("gateway", environment) as process:
        code, said = await process.end()
    assert code == 1
    cause, end = said.splitlines()
    assert cause.startswith("gateway-0: ")
    assert "pdd model fetch" in cause
    assert end == "gateway: gateway-0 ended with exit code 1 before it served, and no other worker does"


@pytest.mark.parametrize(("arguments", "says"), [(("--workers", "0"), "PDD_WORKERS"), (("--workers", "many"), "PDD_WORKERS")])
async def test_a_wrong_number_is_said_once(arguments: tuple[str, ...], says: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert says in line


async def test_a_wrong_setting_is_said_once() -> None:
    async with running_module("gateway", TWO | {"PDD_PIPELINE": "sideways"}) as process:
        code, said = await process.end()
    assert code == 2
    (line,) = said.splitlines()
    assert "PDD_PIPELINE" in line
