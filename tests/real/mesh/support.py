"""Starts a mesh of real processes on the real model, and turns the knobs of its link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import DEFAULT_RTT_MS, EngineName, Handoff, MeshOptions, Pipeline


@dataclass(frozen=True, slots=True)
class Mesh:
    processes: LocalMesh
    pipeline: str
    handoff: str
    grpc_address: str
    http_url: str
    wan_control_url: str


@asynccontextmanager
async def running_mesh(
    model_dir: Path, pipeline: str, handoff: str, *, rtt_ms: float = DEFAULT_RTT_MS, **environment: str
) -> AsyncIterator[Mesh]:
    options = MeshOptions(
        engine=EngineName.LLAMA,
        pipeline=Pipeline(pipeline),
        handoff=Handoff(handoff),
        rtt_ms=rtt_ms,
        model_dir=model_dir,
        # On a machine with too few free cores main computes no faster than the relay decodes: rounds would go on and on.
        # The target is for machines that are slow, or busy: Catch-Up is not tried where one id takes main longer than that.
        environment={"PDD_MAX_ROUNDS": "2", "PDD_ITL_TARGET_MS": "150", **environment},
    )
    async with LocalMesh(options) as mesh:
        yield Mesh(mesh, pipeline, handoff, mesh.grpc_address, mesh.http_url, mesh.wan_control_url)


async def set_link_rate(mesh: Mesh, rate_mbit: float | None) -> None:
    """None lifts the limit."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.patch(f"{mesh.wan_control_url}/link", json={"rate_mbit": rate_mbit}) as response,
    ):
        response.raise_for_status()


async def crossed_bytes(mesh: Mesh) -> int:
    """What the link has carried to main so far: KV, and the little that the gateway says."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{mesh.wan_control_url}/counters") as response:
        response.raise_for_status()
        (forward,) = (await response.json())["forwards"]
    crossed: int = forward["a_to_b_bytes"]
    return crossed
