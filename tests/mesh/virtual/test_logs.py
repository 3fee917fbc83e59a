"""What a whole mesh logs of its requests, at any level: which one, and not what it was asked or has answered."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.generation import MeshError
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.model import SimConfig
from tests.mesh.virtual.asking import ask, greedy, prompt_of
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh, trio

PROMPT = prompt_of(500)
OF_A_REQUEST = ("request started", "request failed")


def test_requests_are_named_and_not_quoted() -> None:
    async def one_answered_and_one_lost() -> None:
        async with running_mesh(MeshSpec(trio(SimConfig(hardware=HARDWARE["cpu-tiny"])))) as mesh:
            await ask(mesh.gateway, PROMPT, greedy(20))
            lost = asyncio.create_task(ask(mesh.gateway, PROMPT, greedy(1000)))
            await asyncio.sleep(1.0)
            for decoder in ("relay-0", "main-0"):
                await mesh.stop(decoder, crash=True)
            with pytest.raises(MeshError):
                await lost

    with capture_logs() as logs:
        run(one_answered_and_one_lost)
    named = [line for line in logs if line["event"] in OF_A_REQUEST]
    assert [line["event"] for line in named] == ["request started", "request started", "request failed"]
    assert all(line["request"] and line["label"] == "test" for line in named)
    quoted = ", ".join(map(str, PROMPT[:3]))
    assert not any(quoted in str(line) for line in logs)
