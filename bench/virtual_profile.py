"""Where a run's time goes, by part of the mesh and by function. Called by `bench.virtual`.

What a builtin or the standard library takes counts for whoever called it. The profiler's own cost weighs on short functions, so
shares are rough; they say where to look.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from pathlib import Path

from bench.report import print_table

ROOT = Path(__file__).parent.parent
FUNCTIONS = 40

# Longest prefix first.
PARTS = {
    "pdd/engine/sim": "engine: the sim's forward passes",
    "pdd/engine": "engine: scheduling and steps",
    "pdd/sampling.py": "engine: sampling",
    "pdd/decode": "decoders: handles and frames",
    "pdd/rpc": "decoders: handles and frames",
    "gateway/mesh/decode_frames.py": "gateway: reading frames",
    "gateway/mesh/link.py": "gateway: reading frames",
    "gateway/mesh/handles.py": "gateway: reading frames",
    "gateway": "gateway: requests, handoff, playout",
    "pdd/transfer": "KV transfers",
    "pdd/kv": "KV transfers",
    "services/prefill": "KV transfers",
    "virtual/clock.py": "virtual: event loop",
    "virtual": "virtual: network",
    "bench": "clients",
}


def print_profile(profile: cProfile.Profile, tokens: int) -> None:
    stats = pstats.Stats(profile)
    taken_s = _by_part(stats)
    whole_s = sum(taken_s.values())
    lines = [(part, f"{seconds / whole_s:.1%}", f"{seconds / tokens * 1e6:.1f}") for part, seconds in taken_s.most_common()]
    print_table(("part", "share", "profiled µs a token"), lines)
    stats.sort_stats("tottime").print_stats(FUNCTIONS)


def _by_part(stats: pstats.Stats) -> Counter[str]:
    taken_s: Counter[str] = Counter()
    for (file, _, _), (_, _, own_s, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        part = _part(file)
        if part is not None:
            taken_s[part] += own_s
            continue
        for (caller, _, _), (_, _, own_for_caller_s, _) in callers.items():
            taken_s[_part(caller) or "asyncio and the rest of the library"] += own_for_caller_s
    return taken_s


def _part(file: str) -> str | None:
    """None for what is not of this repository."""
    path = Path(file)
    if not path.is_relative_to(ROOT) or ".venv" in path.parts:
        return None
    name = path.relative_to(ROOT).as_posix()
    return next((part for prefix, part in PARTS.items() if name.startswith(prefix)), "other")
