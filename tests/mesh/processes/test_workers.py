"""One gateway of two workers under streams: its answers, its counters, and a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import MeshOptions
from pdd.rpc.channel import open_channel
from pdd.v1 import inference_pb2, inference_pb2_grpc
from tests.eventually import eventually
from tests.mesh.processes.sim import expected_text
from tests.mesh.services.instances import BLOCK_TOKENS, prompt
from tests.processes.program import all_gone, children_of
from tests.support.gateway import ASK_TIMEOUT_S, GatewayClient
from tests.support.process import DEADLINE_S

pytestmark = pytest.mark.processes

TWO = MeshOptions(gateway_workers=2)
CLIENTS = 4
TOKENS = 40
COMPLETIONS = "/v1/completions"
GENERATE = "pdd.v1.Inference/Generate"


class Clients:
    """Each request comes on a connection of its own, by HTTP and by gRPC in turns; a wrong answer ends the test."""

    def __init__(self, mesh: LocalMesh, http: GatewayClient) -> None:
        self._mesh = mesh
        self._http = http
        self.asked = dict.fromkeys((COMPLETIONS, GENERATE), 0)
        self.broken = 0  # connections that ended with their worker
        self.over = False

    @property
    def answers(self) -> int:
        return sum(self.asked.values())

    async def run(self, client: int) -> None:
        while not self.over:
            await self.ask(client)

    async def ask(self, client: int) -> None:
        ids = prompt(2 * BLOCK_TOKENS + client, seed=client)
        route = COMPLETIONS if client % 2 else GENERATE
        try:
            text = (await self._http.ask(ids, TOKENS)).text if client % 2 else await self._stream(ids)
        except (aiohttp.ClientError, grpc.RpcError):
            self.broken += 1
            return
        assert text == expected_text(ids, TOKENS)
        self.asked[route] += 1

    async def _stream(self, ids: list[int]) -> str:
        options = inference_pb2.GenerateOptions(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        request = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenInput(ids=ids), options=options)
        async with open_channel(self._mesh.grpc_address) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            return "".join([reply.delta.text async for reply in stub.Generate(request, timeout=ASK_TIMEOUT_S)])

    async def until(self, answers: int) -> None:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            while self.answers < answers:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[LocalMesh, GatewayClient]]:
    fresh = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    async with LocalMesh(TWO) as mesh, aiohttp.ClientSession(connector=fresh, timeout=timeout) as session:
        yield mesh, GatewayClient(mesh.http_url, session)


def workers_of(mesh: LocalMesh) -> list[int]:
    return children_of(mesh.children["gateway"].pid)


def metrics_folder(pid: int) -> Path:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return Path(dict(each.partition("=")[::2] for each in variables)["PROMETHEUS_MULTIPROC_DIR"])


def answered_by(number: int, folder: Path) -> float:
    """Requests that this worker alone has answered."""
    found: Iterable[Metric] = MultiProcessCollector.merge([str(folder / f"counter_{number}.db")])
    samples = [sample for family in found for sample in family.samples if sample.name == "pdd_requests_total"]
    return sum(one.value for one in samples if one.labels["route"] in (COMPLETIONS, GENERATE))


async def output_tokens(url: str) -> float:
    """As one scrape of the gateway has them."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return sum(sample.value for family in families for sample in family.samples if sample.name == "pdd_output_tokens_total")


async def test_workers_answer_as_one_gateway_and_their_counters_add_up() -> None:
    async with two_workers() as (mesh, http):
        clients = Clients(mesh, http)
        folder = metrics_folder(workers_of(mesh)[0])
        async with asyncio.timeout(ASK_TIMEOUT_S):
            while clients.answers < 20 or not all(answered_by(number, folder) for number in range(2)):
                async with asyncio.TaskGroup() as group:
                    for client in range(CLIENTS):
                        group.create_task(clients.ask(client))
        assert clients.broken == 0
        await http.until("pdd_requests_total", clients.asked[COMPLETIONS], route=COMPLETIONS, status="200", outcome="ok")
        await http.until("pdd_requests_total", clients.asked[GENERATE], route=GENERATE, status="OK", outcome="ok")
        await http.until("pdd_time_to_first_token_seconds_count", clients.answers)
        for _ in range(5):  # whichever of them is asked
            async with asyncio.timeout(DEADLINE_S):
                while await output_tokens(mesh.http_url) != clients.answers * TOKENS:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await http.until("pdd_requests_running", 0, route=COMPLETIONS)


async def test_one_worker_is_killed_and_the_others_go_on_until_it_is_back() -> None:
    async with two_workers() as (mesh, http):
        clients = Clients(mesh, http)
        before = set(workers_of(mesh))
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(clients.run(client))
            await clients.until(3 * CLIENTS)
            os.kill(min(before), signal.SIGKILL)
            await eventually(all_gone([min(before)]))
            await http.until("pdd_gateway_workers", 1)
            await clients.until(clients.answers + 3 * CLIENTS)
            broken = clients.broken
            await http.until("pdd_gateway_workers", 2)
            await clients.until(clients.answers + 3 * CLIENTS)
            clients.over = True
        # What was on its way at that moment, or tried again before all its sockets were closed; and nothing after it.
        assert clients.broken == broken <= 2 * CLIENTS
        after = set(workers_of(mesh))
        assert len(after) == 2
        assert before & after == {max(before)}
        assert mesh.exits.empty()
        await http.until("pdd_requests_running", 0, route=COMPLETIONS)
        counted = await http.metric("pdd_requests_total", route=COMPLETIONS, status="200", outcome="ok")
        assert abs(counted - clients.asked[COMPLETIONS]) <= CLIENTS  # the killed one may not have counted its last answers


async def test_workers_die_with_a_gateway_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the folder that nobody is left to remove
    async with two_workers() as (mesh, _http):
        workers = workers_of(mesh)
        assert len(workers) == 2
        os.kill(mesh.children["gateway"].pid, signal.SIGKILL)
        await eventually(all_gone(workers))
