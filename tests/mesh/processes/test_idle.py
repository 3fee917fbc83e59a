"""A mesh that nobody asks for longer than a minute answers at the first try, over the streams that it had."""

from __future__ import annotations

import asyncio

import pytest

from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import MeshOptions, Pipeline
from pdd.rpc.channel import KEEPALIVE_S
from tests.mesh.processes.sim import expected_text
from tests.mesh.services.instances import BLOCK_TOKENS, prompt
from tests.support.gateway import asking

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

IDLE_S = 65.0  # several keepalive pings without data, which a server that objects to them would have ended the connection for
TOKENS = 30
ROLES = ("prefill-0", "relay-0", "main-0")


async def test_the_first_request_after_a_minute_of_silence_is_answered() -> None:
    assert IDLE_S > 6 * KEEPALIVE_S
    async with LocalMesh(MeshOptions(pipeline=Pipeline.RELAY)) as mesh, asking(mesh.http_url) as gateway:
        for seed in range(2):  # P has a connection of its own to relay and main by then, and none is new
            ids = prompt(5 * BLOCK_TOKENS + 3, seed)
            assert (await gateway.ask(ids, TOKENS)).text == expected_text(ids, TOKENS)
        logs = {name: log_size(mesh, name) for name in ("gateway", *ROLES)}
        await asyncio.sleep(IDLE_S)
        ids = prompt(5 * BLOCK_TOKENS + 3, seed=5)
        assert (await gateway.ask(ids, TOKENS)).text == expected_text(ids, TOKENS)
        for name, size in logs.items():
            assert "lost" not in mesh.children[name].log_path.read_text()[size:]
        assert mesh.exits.empty()


def log_size(mesh: LocalMesh, name: str) -> int:
    return len(mesh.children[name].log_path.read_text())
