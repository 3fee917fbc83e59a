"""A mesh under a workload, in virtual time: what `bench.agents` and `bench.trace` share.

Prefills and relays are gpu-a, mains gpu-b, and all serve dense-8b: 131 KB of KV a token, on gpu-a 44 µs a prompt token and 20 ms
a decode step, on gpu-b 5 ms. An instance has as many slots as its memory has room for contexts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from random import Random

from bench.report import RESULTS, print_table, write_json
from gateway.mesh.settings import MeshSettings, PipelineChoice
from pdd.catalog.base import Role
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE, MODELS, HardwareProfile, kv_capacity_tokens
from pdd.engine.sim.model import SimConfig
from pdd.telemetry import configure_logging
from virtual.clock import run
from virtual.mesh import InstanceSpec, MeshSpec, running_mesh
from virtual.workloads.alignment import Alignment, alignment, by_window, least_wan_bytes
from virtual.workloads.base import Workload
from virtual.workloads.drive import drive
from virtual.workloads.record import Record
from virtual.workloads.reference import Reference
from virtual.workloads.report import HEAD, error_counts, lines
from wan.link import LinkSettings

MODEL = MODELS["dense-8b"]
PROFILES = {Role.PREFILL: HARDWARE["gpu-a"], Role.RELAY: HARDWARE["gpu-a"], Role.MAIN: HARDWARE["gpu-b"]}
LIMITS = StepLimits(chunk_tokens=2048, step_tokens=2048)
MOST_SLOTS = 64  # of an instance
KV_BUDGET_BYTES = 256 << 30  # of an instance's host memory, declared
WINDOWS = 10
ALIGNMENT_HEAD = ("asked from", "P", "MD", "P - MD, points", "WAN GB")


@dataclass(frozen=True, slots=True)
class Trial:
    """One run."""

    prefills: int
    relays: int
    mains: int
    pipeline: str
    cache_gib: float  # of each prefill and main
    wan_mbit: float
    rtt_ms: float
    block_tokens: int
    duration_s: float  # virtual, in which requests are asked
    seed: int
    relay_alone: bool = False  # low-hit requests stay on the relay, and main's cache falls behind

    def mesh(self, context_tokens: int) -> MeshSpec:
        counts = {Role.PREFILL: self.prefills, Role.RELAY: self.relays, Role.MAIN: self.mains}
        settings = MeshSettings(pipeline=PipelineChoice(self.pipeline), wan_mbit=self.wan_mbit)
        return MeshSpec(
            tuple(self._instance(role, context_tokens) for role, count in counts.items() for _ in range(count)),
            LinkSettings(rate_mbit=self.wan_mbit, rtt_ms=self.rtt_ms),
            settings,
            self.seed,
            replace(settings.route_policy(), relay_alone_when_low_hit=True) if self.relay_alone else None,
        )

    def _instance(self, role: Role, context_tokens: int) -> InstanceSpec:
        hardware = PROFILES[role]
        model = SimConfig(
            slots=_slots(hardware, context_tokens),
            context_tokens=context_tokens,
            block_tokens=self.block_tokens,
            page_tokens=self.block_tokens,
            hardware=hardware,
            model=MODEL,
        )
        return InstanceSpec(role, model, LIMITS, KV_BUDGET_BYTES, int(self.cache_gib * (1 << 30)))

    @property
    def cache_blocks(self) -> int:
        """Of each prefill and main."""
        return int(self.cache_gib * (1 << 30)) // (self.block_tokens * MODEL.kv_bytes)


def add_options(parser: argparse.ArgumentParser, duration_s: float) -> None:
    parser.add_argument("--prefills", type=int, default=2)
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--mains", type=int, default=2)
    parser.add_argument("--pipeline", choices=[choice.value for choice in PipelineChoice], default=PipelineChoice.RELAY.value)
    parser.add_argument("--cache-gib", type=float, default=0.0, help="prefix cache of each prefill and main")
    parser.add_argument("--wan-mbit", type=float, default=10_000.0)
    parser.add_argument("--rtt-ms", type=float, default=40.0)
    parser.add_argument("--duration-s", type=float, default=duration_s, help="virtual, in which requests are asked")
    parser.add_argument("--scale", type=float, default=0.125, help="of all lengths")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--relay-alone", action="store_true", help="low-hit requests stay on the relay, to see what that leads to"
    )


def trial_of(options: argparse.Namespace, block_tokens: int) -> Trial:
    return Trial(
        options.prefills,
        options.relays,
        options.mains,
        options.pipeline,
        options.cache_gib,
        options.wan_mbit,
        options.rtt_ms,
        block_tokens,
        options.duration_s,
        options.seed,
        options.relay_alone,
    )


def measure(name: str, workload: Workload, trial: Trial, scale: float) -> None:
    """Run it, print the table and write `results/<name>.json`."""
    configure_logging("error", "bench")
    reference = Reference(trial.block_tokens, trial.prefills * trial.cache_blocks, trial.mains * trial.cache_blocks)
    began_s = time.perf_counter()
    records = run(_drive, workload, trial, reference)
    wall_s = time.perf_counter() - began_s
    print_table(HEAD, lines(records))
    tally = reference.tally
    print(f"\nreference LRUs of equal capacity: {tally.prefill_rate:.1%} cached, {tally.main_rate:.1%} on main\n")
    whole = alignment(records)
    least = least_wan_bytes(whole, tally.main_rate, MODEL.kv_bytes)
    print(f"over the link {whole.wan_bytes / 1e9:.1f} GB; main's misses of the reference are {least / 1e9:.1f} GB\n")
    windows = by_window(records, trial.duration_s / WINDOWS)
    print_table(ALIGNMENT_HEAD, [_window_line(start_s, found) for start_s, found in windows])
    if errors := error_counts(records):
        print("errors:", ", ".join(f"{count} {code}" for code, count in errors.items()))
    print(f"{wall_s:.1f} s of wall time")
    write_json(
        RESULTS / f"{name}.json",
        {
            "trial": asdict(trial),
            "scale": scale,
            "head": HEAD,
            "lines": lines(records),
            "reference": asdict(tally),
            "alignment": asdict(whole),
            "windows": [(start_s, asdict(found)) for start_s, found in windows],
            "wall_s": wall_s,
        },
    )


def _window_line(start_s: float, found: Alignment) -> tuple[str, ...]:
    return (
        f"{start_s:.0f} s",
        f"{found.prefill_rate:.1%}",
        f"{found.main_rate:.1%}",
        f"{100 * found.gap:+.1f}",
        f"{found.wan_bytes / 1e9:.1f}",
    )


async def _drive(workload: Workload, trial: Trial, reference: Reference) -> list[Record]:
    async with running_mesh(trial.mesh(workload.context_tokens)) as mesh:
        return await drive(workload, mesh.gateway, Random(trial.seed), trial.duration_s, reference)


def _slots(hardware: HardwareProfile, context_tokens: int) -> int:
    return max(1, min(MOST_SLOTS, int(kv_capacity_tokens(hardware, MODEL) // context_tokens)))
