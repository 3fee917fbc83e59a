"""`pdd doctor` as it is run, beside a mesh of real processes behind a real link: each fault is named, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
import pytest
from redis.asyncio import Redis

from pdd.catalog.base import Role
from pdd.catalog.embedded import embedded_valkey
from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import MeshOptions
from tests.eventually import POLL_S
from tests.mesh.processes.services import registered, running_service
from tests.processes.program import ended

pytestmark = pytest.mark.processes

INSTANT = {"PDD_SIM_PROFILE": "instant"}
PROBE_BEGUN_BYTES = 1 << 20  # far more than the streams of a mesh that idles
LONGEST_S = 20.0  # with the mesh's end; the kernel alone would try for as long to get rid of what the probe has sent


class Told:
    """What one run of the doctor said."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.answer: dict[str, Any] = orjson.loads(output)

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(finding["check"], finding["subject"]) for finding in self.answer["findings"]]

    def what(self, check: str) -> str:
        (what,) = [finding["what"] for finding in self.answer["findings"] if finding["check"] == check]
        return str(what)

    def instance(self, id: str) -> Mapping[str, Any]:
        return next(one for one in self.answer["instances"] if one["id"] == id)


async def doctor(mesh: LocalMesh) -> Told:
    """With the settings that the mesh's gateway has."""
    plan = {"PDD_WAN_MBIT": f"{mesh.options.rate_mbit:g}", "PDD_HTTP": f"0.0.0.0:{mesh.addresses.http.rpartition(':')[2]}"}
    return Told(*await ended("doctor", "--json", environment={"PDD_ENGINE": "sim", "PDD_REDIS_URL": mesh.redis_url, **plan}))


async def set_link(mesh: LocalMesh, **changes: object) -> None:
    async with aiohttp.ClientSession() as session, session.patch(f"{mesh.wan_control_url}/link", json=changes) as response:
        assert response.status == 200, await response.text()


async def crossed_bytes(mesh: LocalMesh) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{mesh.wan_control_url}/counters") as response:
        counters = await response.json()
    return sum(forward["a_to_b_bytes"] for forward in counters["forwards"])


async def test_a_healthy_mesh_has_no_findings_and_its_line_the_rate_it_was_given() -> None:
    async with LocalMesh(MeshOptions(environment=INSTANT)) as mesh:
        told = await doctor(mesh)
    assert (told.code, told.named) == (0, [])
    assert {one["id"] for one in told.answer["instances"]} == {"prefill-0", "relay-0", "main-0"}
    main = told.instance("main-0")
    assert mesh.options.rate_mbit / 2 < main["goodput_mbit"] < mesh.options.rate_mbit * 2
    assert main["round_trip_ms"] >= mesh.options.rtt_ms
    assert main["cached_blocks"] == 0


async def test_a_line_at_a_tenth_of_its_rate_is_named_with_both_figures() -> None:
    async with LocalMesh(MeshOptions(environment=INSTANT)) as mesh:
        await set_link(mesh, rate_mbit=mesh.options.rate_mbit / 10)
        told = await doctor(mesh)
    assert (told.code, told.named) == (1, [("link_slow", "main-0")])
    assert "PDD_WAN_MBIT says 50" in told.what("link_slow")
    measured = told.instance("main-0")["goodput_mbit"]
    assert f"carries {measured:.1f} Mbit/s" in told.what("link_slow")
    assert measured < mesh.options.rate_mbit / 4


async def test_a_main_that_cannot_be_reached_is_named() -> None:
    async with LocalMesh(MeshOptions(environment=INSTANT)) as mesh:
        for outage in ("refuse", "black_hole"):
            await set_link(mesh, outage=outage)
            told = await doctor(mesh)
            assert told.code == 1
            assert ("unreachable", "main-0") in told.named
            assert {subject for _, subject in told.named} <= {"main-0", "gateway"}


async def test_a_line_that_dies_during_the_probe_does_not_hold_the_doctor() -> None:
    async with LocalMesh(MeshOptions(environment=INSTANT)) as mesh, asyncio.timeout(LONGEST_S):
        running = asyncio.create_task(doctor(mesh))
        while await crossed_bytes(mesh) < PROBE_BEGUN_BYTES:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        await set_link(mesh, outage="black_hole")
        told = await running
    assert {subject for _, subject in told.named} == {"main-0"}


async def test_a_main_that_has_died_is_named_by_its_role() -> None:
    async with LocalMesh(MeshOptions(environment=INSTANT)) as mesh:
        mesh.children["main-0"].signal(signal.SIGKILL)
        async with Redis.from_url(mesh.redis_url) as redis:
            while await redis.exists("pdd:instance:main-0"):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        told = await doctor(mesh)
    assert told.code == 1
    assert ("role_missing", "main") in told.named


async def test_an_instance_of_another_block_size_is_named_with_both_sizes_after_it_was_refused() -> None:
    async with embedded_valkey() as redis_url, running_service(Role.PREFILL, redis_url), running_service(Role.RELAY, redis_url):
        await registered(redis_url, 2)
        async with running_service(Role.MAIN, redis_url, PDD_BLOCK_TOKENS="32") as main:
            code, said = await main.end()
        assert code == 1
        assert "Traceback" not in said
        environment = {"PDD_ENGINE": "sim", "PDD_REDIS_URL": redis_url}
        told = Told(*await ended("doctor", "--json", "--no-gateway", environment=environment))
    assert (told.code, told.named) == (1, [("role_missing", "main"), ("layout_mismatch", "main-0")])
    assert "block_tokens: 32 against 16" in told.what("layout_mismatch")


async def test_a_redis_that_is_down_is_named() -> None:
    async with embedded_valkey() as redis_url, LocalMesh(MeshOptions(environment=INSTANT, redis_url=redis_url)) as mesh:
        async with Redis.from_url(redis_url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
        told = await doctor(mesh)
    assert told.code == 1
    assert ("redis_away", "redis") in told.named
    assert redis_url in told.what("redis_away")
    assert {subject for _, subject in told.named} <= {"redis", "gateway"}  # which is degraded by it


async def test_people_are_told_what_to_do() -> None:
    code, output = await ended("doctor", "--no-gateway", environment={"PDD_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert code == 1
    assert "fault redis_away" in output
    assert "do: start Redis" in output


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PDD_WAN_MBIT": "plenty"}, "PDD_WAN_MBIT"),
        ({"PDD_REDIS_URL": "valkey://here"}, "registry URL"),
        ({"PDD_ENGINE": "llama", "PDD_MODEL_DIR": "/nowhere"}, "/nowhere"),
    ],
)
async def test_a_wrong_setting_is_wrong_usage(environment: Mapping[str, str], said: str) -> None:
    code, output = await ended("doctor", environment=environment)
    assert code == 2
    assert said in output
    assert "Traceback" not in output
