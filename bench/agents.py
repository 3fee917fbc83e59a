"""A mesh that serves agents: latencies, who made the tokens, what hit, and what crossed the link.

    python -m bench.agents                                        a minute of 16 agents at an eighth of their lengths
    python -m bench.agents --scale 1 --agents 24 --duration-s 600 --pipeline auto --cache-gib 64

Times are virtual and depend on no machine. Beside what the mesh hit stands what two LRUs of the same capacity would have.
"""

from __future__ import annotations

import argparse

from bench.workload_mesh import add_options, measure, trial_of
from virtual.workloads.agents import Agents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, duration_s=60.0)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--ramp-s", type=float, default=10.0, help="over which the agents begin")
    parser.add_argument("--block-tokens", type=int, default=64)
    options = parser.parse_args()
    workload = Agents(agents=options.agents, ramp_s=options.ramp_s, scale=options.scale)
    measure("agents", workload, trial_of(options, options.block_tokens), options.scale)


if __name__ == "__main__":
    main()
