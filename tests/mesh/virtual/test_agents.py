"""A mesh that serves agents: both caches hit as they should, and no more crosses the link than has to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from bench.workload_mesh import Trial
from pdd.kv.cache import Prefix, PrefixCache
from pdd.kv.store import Lease
from virtual.clock import run
from virtual.mesh import MeshSpec, running_mesh
from virtual.workloads.agents import Agents
from virtual.workloads.alignment import alignment, least_wan_bytes
from virtual.workloads.drive import drive
from virtual.workloads.record import Record
from virtual.workloads.reference import HitTally, Reference

WORKLOAD = Agents(agents=24, ramp_s=20.0, scale=0.25)
# Caches that hold everything, and a line on which what a turn adds crosses within the stall budget, and a task does not.
TRIAL = Trial(2, 2, 2, "auto", 64.0, 10_000.0, 40.0, 64, duration_s=120.0, seed=1)
WARM_S = 60.0
TOKEN_BYTES = 131_072


class Kept:
    """What entered a cache, and what had been sent although it was there."""

    def __init__(self) -> None:
        self.doubles = 0

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        keep = PrefixCache.keep

        def watched(cache: PrefixCache, lease: Lease, prefix: Prefix, first_block: int) -> int:
            kept = keep(cache, lease, prefix, first_block)
            if cache.limit_bytes:
                self.doubles += len(cache.store.sealed(lease)) - kept
            return kept

        patch.setattr(PrefixCache, "keep", watched)
        yield


async def _serve(spec: MeshSpec, trial: Trial, reference: Reference) -> list[Record]:
    async with running_mesh(spec) as mesh:
        return await drive(WORKLOAD, mesh.gateway, Random(trial.seed), trial.duration_s, reference)


def served(trial: Trial) -> tuple[list[Record], HitTally]:
    reference = Reference(trial.block_tokens, trial.prefills * trial.cache_blocks, trial.mains * trial.cache_blocks)
    records = run(_serve, trial.mesh(WORKLOAD.context_tokens), trial, reference, limit_s=3600.0)
    return records, reference.tally


def test_agents_hit_both_caches_and_only_what_main_lacks_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    with kept.watching(monkeypatch):
        records, reference = served(TRIAL)
    assert [record.error for record in records if record.error] == []
    assert all(record.tokens == record.max_tokens for record in records)
    whole, warm = alignment(records), alignment(records, WARM_S)
    assert warm.prefill_rate >= 0.88
    assert warm.gap <= 0.02
    bound = least_wan_bytes(whole, reference.main_rate, TOKEN_BYTES) + 0.005 * whole.prompt_tokens * TOKEN_BYTES
    assert whole.wan_bytes <= bound
    assert kept.doubles == 0
    shares = {name: sum(one.pipeline == name for one in records) / len(records) for name in ("direct", "singular")}
    assert shares["direct"] > 0.5
    assert shares["singular"] < 0.06


def test_low_hit_requests_that_stay_on_the_relay_drive_the_caches_apart() -> None:
    records, _ = served(replace(TRIAL, relay_alone=True, duration_s=30.0))
    assert [record.error for record in records if record.error] == []
    assert alignment(records, 15.0).gap > 0.1
