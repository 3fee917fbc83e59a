"""One request's trace over real processes, as all of them export it to one file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import Handoff, MeshOptions, Pipeline
from pdd.v1 import inference_pb2, inference_pb2_grpc
from tests.mesh.processes.sim import until_main_is_known_to_have
from tests.mesh.services.instances import BLOCK_TOKENS, prompt
from tests.support.gateway import asking
from tests.support.traces import Exported, Trace, exported

pytestmark = pytest.mark.processes

IDS = prompt(8 * BLOCK_TOKENS + 5)  # 2.9 MB of KV
OTHERS = prompt(8 * BLOCK_TOKENS + 6)[1:]  # as many, that nobody has
RATE_MBIT = 20.0  # either takes over a second: far over the stall budget
TOKENS, LONG = 200, 600
SERVER, CLIENT_SPAN = 2, "00f067aa0ba902b7"

GATEWAY = {"request", "route", "prefill", "finish"}
AT_PREFILL = {"prefill.request", "prefill.queue", "prefill.compute"}
AT_RELAY = {"transfer.relay", "relay.request", "relay.receive", "relay.import", "relay.decode"}
AT_MAIN = {"transfer.main", "main.request", "main.receive", "extend", "main.decode"}


@dataclass(frozen=True, slots=True)
class Client:
    http_url: str
    grpc_address: str

    async def ask(self, ids: Sequence[int], count: int, expected_tokens: int, trace_id: str, flags: str = "01") -> str:
        """Ask over HTTP from within a trace; the pipeline."""
        body = {"model": "pdd-sim", "prompt": list(ids), "max_tokens": count, "temperature": 0, "ignore_eos": True}
        headers = {"x-pdd-expected-tokens": str(expected_tokens), "traceparent": f"00-{trace_id}-{CLIENT_SPAN}-{flags}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.http_url}/v1/completions", json=body, headers=headers) as response,
        ):
            assert response.status == 200, await response.text()
            return response.headers["x-pdd-plan"].split("; ")[0].removeprefix("pipeline=")

    async def ask_over_grpc(self, ids: Sequence[int], trace_id: str) -> None:
        options = inference_pb2.GenerateOptions(max_tokens=5, ignore_eos=True)
        request = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenInput(ids=ids), options=options)
        async with grpc.aio.insecure_channel(self.grpc_address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            await stub.GenerateOnce(request, metadata=(("traceparent", f"00-{trace_id}-{CLIENT_SPAN}-01"),))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    path = tmp_path_factory.mktemp("traces") / "spans.jsonl"
    return asyncio.run(traced_requests(path))


async def traced_requests(path: Path) -> dict[str, Trace]:
    """A request for each pipeline and some more, each in a trace of its own, by its name here."""
    options = MeshOptions(
        pipeline=Pipeline.AUTO,
        handoff=Handoff.CATCH_UP,
        rate_mbit=RATE_MBIT,
        environment={"PDD_TRACE_FILE": str(path), "PDD_TRACE_SAMPLE": "1"},
    )
    ids = {name: f"{number:032x}" for number, name in enumerate(("singular", "relay", "direct", "grpc", "unsampled"), start=1)}
    async with LocalMesh(options) as mesh, asking(mesh.http_url) as gateway:
        client = Client(mesh.http_url, mesh.grpc_address)
        assert await client.ask(OTHERS, 3, 3, ids["singular"]) == "singular"
        assert await client.ask(IDS, TOKENS, LONG, ids["relay"]) == "relay"
        await until_main_is_known_to_have(gateway, IDS)
        assert await client.ask(IDS, 20, LONG, ids["direct"]) == "direct"
        await client.ask_over_grpc(IDS, ids["grpc"])
        await client.ask(IDS, 3, LONG, ids["unsampled"], flags="00")
    found = exported(path)
    return {name: found[trace_id] for name, trace_id in ids.items() if trace_id in found}


@pytest.mark.parametrize(
    ("pipeline", "stages"),
    [
        ("relay", ["route", "prefill", "relay", "switch", "main", "finish"]),
        ("direct", ["route", "prefill", "main", "finish"]),
        ("singular", ["route", "prefill", "relay", "finish"]),
    ],
)
def test_the_user_visible_stages_follow_each_other_and_are_the_whole_request(
    traces: dict[str, Trace], pipeline: str, stages: list[str]
) -> None:
    trace = traces[pipeline]
    assert [span.name for span in trace.stages] == stages
    assert {span.parent_id for span in trace.stages} == {trace.root.id}
    for before, after in zip(trace.stages, trace.stages[1:], strict=False):
        assert after.start_ns == before.end_ns
    covered_ns = sum(span.end_ns - span.start_ns for span in trace.stages)
    assert covered_ns >= 0.95 * (trace.root.end_ns - trace.root.start_ns) > 0


@pytest.mark.parametrize(
    ("pipeline", "names"),
    [
        ("relay", GATEWAY | AT_PREFILL | AT_RELAY | AT_MAIN | {"relay", "switch", "main"}),
        ("direct", GATEWAY | AT_PREFILL | AT_MAIN | {"main"}),
        ("singular", GATEWAY | AT_PREFILL | AT_RELAY | {"relay"}),
    ],
)
def test_each_stage_has_a_span_under_the_right_parent(traces: dict[str, Trace], pipeline: str, names: set[str]) -> None:
    trace = traces[pipeline]
    assert {span.name for span in trace.spans} == names
    assert (trace.root.kind, trace.root.parent_id) == (SERVER, CLIENT_SPAN)
    assert not any(span.failed for span in trace.spans)
    for span in trace.spans:
        if span is not trace.root:
            assert trace.with_id(span.parent_id).name == parent_of(span), span
        assert span.start_ns <= span.end_ns


def parent_of(span: Exported) -> str:
    if span.service == "gateway" or span.name.endswith(".request"):
        return "request"
    return f"{span.service}.request"


@pytest.mark.parametrize("pipeline", ["relay", "direct", "singular"])
def test_transfers_and_extends_are_linked_to_the_stage_that_they_serve(traces: dict[str, Trace], pipeline: str) -> None:
    trace = traces[pipeline]
    beside = [span for span in trace.spans if span.name == "extend" or span.name.startswith("transfer.")]
    for span in beside:
        (linked,) = span.links
        assert trace.with_id(linked).name == ("main" if span.name == "extend" else span.name.removeprefix("transfer."))
    assert {span.service for span in beside} >= ({"prefill"} if pipeline == "singular" else {"prefill", "main"})


def test_a_transfer_says_what_it_moved_and_a_catch_up_has_several_extends(traces: dict[str, Trace]) -> None:
    relay, direct = traces["relay"], traces["direct"]
    sent = relay.one("transfer.main")
    assert sent.attributes["pdd.outcome"] == "used"
    assert sent.attributes["pdd.bytes"] == relay.root.attributes["pdd.wan_kv_bytes"] > 0
    assert direct.one("transfer.main").attributes["pdd.bytes"] == 0  # main had it all
    assert len(relay.named("extend")) > 1
    assert relay.root.attributes["pdd.handoff"] == "catch_up"
    assert sum(stage.attributes["pdd.tokens"] for stage in (relay.one("relay"), relay.one("main"))) == TOKENS - 1
    assert relay.one("main.decode").attributes["pdd.tokens"] == relay.one("main").attributes["pdd.tokens"]


def test_a_call_over_grpc_is_in_its_clients_trace(traces: dict[str, Trace]) -> None:
    assert traces["grpc"].root.parent_id == CLIENT_SPAN
    assert {span.service for span in traces["grpc"].spans} >= {"gateway", "prefill", "main"}


def test_a_client_that_does_not_record_its_trace_is_not_traced(traces: dict[str, Trace]) -> None:
    assert "unsampled" not in traces


async def test_with_a_share_of_none_nothing_is_exported(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    options = MeshOptions(environment={"PDD_TRACE_FILE": str(path), "PDD_TRACE_SAMPLE": "0"})
    async with LocalMesh(options) as mesh:
        await Client(mesh.http_url, mesh.grpc_address).ask(IDS, 5, 5, f"{7:032x}")
    assert path.read_text() == ""
