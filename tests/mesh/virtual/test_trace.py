"""A mesh that serves a piece of a production trace: every request gets exactly the tokens that its line asks for."""

from __future__ import annotations

from random import Random

from bench.trace import SLICE
from bench.workload_mesh import Trial
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh
from virtual.workloads.alignment import alignment
from virtual.workloads.drive import drive
from virtual.workloads.mooncake import Mooncake, read_trace
from virtual.workloads.record import Record
from virtual.workloads.reference import Reference

SECONDS = 40.0


async def _serve(spec: MeshSpec, workload: Mooncake, reference: Reference) -> list[Record]:
    async with running_mesh(spec) as mesh:
        return await drive(workload, mesh.gateway, Random(1), SECONDS, reference)


def test_every_request_of_a_trace_gets_what_its_line_asks_for() -> None:
    with SLICE.open() as lines:
        workload = Mooncake(tuple(read_trace(lines)), to_s=SECONDS, scale=0.125)
    trial = Trial(2, 2, 2, "auto", 32.0, 10_000.0, 40.0, workload.block_tokens, SECONDS, seed=1)
    reference = Reference(trial.block_tokens, 2 * trial.cache_blocks, 2 * trial.cache_blocks)
    records = run(_serve, trial.mesh(workload.context_tokens), workload, reference, limit_s=3600.0)
    assert [record.error for record in records if record.error] == []
    asked = [request for request in workload.requests if request.at_ms < 1000 * SECONDS]
    assert sorted(record.tokens for record in records) == sorted(max(1, request.output_tokens // 8) for request in asked)
    found = alignment(records)
    assert found.prefill_rate > 0.7 * reference.tally.prefill_rate
    assert found.gap <= 0.02
