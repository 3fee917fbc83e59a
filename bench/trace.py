r"""A mesh that serves a replayed trace: latencies, who made the tokens, what hit, and what crossed the link.

    python -m bench.trace                                              a minute of the committed slice, lengths by 8
    python -m bench.trace conversation_trace.jsonl --scale 1 --duration-s 600 --pipeline auto --cache-gib 128 \
        --prefills 4 --relays 8 --mains 4 --wan-mbit 100000        the first ten minutes, at full lengths

Times are virtual and depend on no machine. Blocks are the trace's, scaled: 512 tokens at full length. Requests are asked when the
trace says, however late their predecessors are; `--rate` speeds that up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.workload_mesh import add_options, measure, trial_of
from virtual.workloads.mooncake import Mooncake, read_trace

SLICE = Path(__file__).parents[1] / "tests" / "fixtures" / "mooncake" / "conversation_slice.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", default=SLICE)
    add_options(parser, duration_s=60.0)
    parser.add_argument("--from-s", type=float, default=0.0, help="of the trace's time")
    parser.add_argument("--rate", type=float, default=1.0, help="how much faster than the trace")
    options = parser.parse_args()
    with options.trace.open() as lines:
        requests = tuple(read_trace(lines))
    to_s = options.from_s + options.duration_s * options.rate
    workload = Mooncake(requests, options.from_s, to_s, options.scale, options.rate)
    measure("trace", workload, trial_of(options, workload.block_tokens), options.scale)


if __name__ == "__main__":
    main()
