"""What a workload is like, with caches that never forget.

python -m virtual.workloads agents
python -m virtual.workloads mooncake tests/fixtures/mooncake/conversation_slice.jsonl --scale 0.125
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random

from virtual.workloads.agents import Agents
from virtual.workloads.base import Workload
from virtual.workloads.chat import Chat
from virtual.workloads.documents import Documents
from virtual.workloads.mooncake import Mooncake, read_trace
from virtual.workloads.statistics import characterise

GENERATED = {"agents": Agents, "chat": Chat, "documents": Documents}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="virtual.workloads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=(*GENERATED, "mooncake"))
    parser.add_argument("trace", type=Path, nargs="?", help="of mooncake")
    parser.add_argument("--duration-s", type=float, default=600.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths")
    parser.add_argument("--block-tokens", type=int, help="64, or a block of the trace")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workload: Workload
    if options.workload == "mooncake":
        if options.trace is None:
            parser.error("mooncake needs the file of a trace")
        with options.trace.open() as lines:
            workload = Mooncake(tuple(read_trace(lines)), scale=options.scale)
        block_tokens = options.block_tokens or workload.block_tokens
    else:
        workload = GENERATED[options.workload](scale=options.scale)
        block_tokens = options.block_tokens or 64
    found = characterise(workload, Random(options.seed), options.duration_s, block_tokens, options.scale)
    for name, value in asdict(found).items():
        text = f"{value:.1%}" if name.endswith(("hit", "share")) else f"{value:,.0f}"
        sys.stdout.write(f"{name.replace('_', ' '):<20}{text:>12}\n")


if __name__ == "__main__":
    main()
