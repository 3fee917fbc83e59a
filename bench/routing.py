"""What routing a request costs the gateway: hashing its prompt, and deciding over the instances. CPU time of one thread.

    python -m bench.routing                       a prompt of 64K tokens, 16 instances
    python -m bench.routing --tokens 8192 --instances 4 4 4

The least of many repetitions counts, as what else the machine does only adds to it. How fast the machine is just now is told by a
bare Python loop, measured beside it. What the catalog's index takes to find the hits is its own benchmark's.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.report import RESULTS, print_table, write_json
from gateway.routing.router import decide
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, Link, RouteRequest, Snapshot
from pdd.catalog.base import Registration, Role
from pdd.identity import Instance
from pdd.kv.hashing import chain_hashes
from pdd.kv.layout import DENSE_F16, KvLayout

TARGET_MS = 2.0
LOOP_TURNS = 100_000
SITES = {Role.PREFILL: "a", Role.RELAY: "a", Role.MAIN: "b"}


@dataclass(frozen=True)
class Cost:
    what: str
    least_ms: float
    median_ms: float


def bare_loop() -> None:
    for _ in range(LOOP_TURNS):
        pass


def layout() -> KvLayout:
    """A new object for each instance, as the registry's answers give one."""
    return KvLayout("model", "tokenizer", 30, 3, 64, 16, (DENSE_F16,), 368_640, "llama")


def snapshot(counts: tuple[int, int, int], tokens: int) -> Snapshot:
    chance = random.Random(1)
    candidates = []
    for role, count in zip((Role.PREFILL, Role.RELAY, Role.MAIN), counts, strict=True):
        for at in range(count):
            instance = Instance(f"{role.value}-{at}", at + 1)
            its = Registration(instance, role, SITES[role], "127.0.0.1:1", layout(), 1 << 20, 32)
            cached = 0 if role is Role.RELAY else chance.randrange(tokens)
            candidates.append(Candidate(its, chance.random(), chance.randrange(32), cached, step_s=0.02))
    line = Link(1e9, 50_000_000, 3, 0.03)
    return Snapshot(candidates, prior=line, links={("a", "b"): line})


def cost(what: str, work: Callable[[], object], repetitions: int) -> Cost:
    took_ms = []
    for _ in range(repetitions):
        start_s = time.thread_time()
        work()
        took_ms.append((time.thread_time() - start_s) * 1000)
    return Cost(what, min(took_ms), statistics.median(took_ms))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--instances", type=int, nargs=3, default=(6, 4, 6), metavar=("PREFILLS", "RELAYS", "MAINS"))
    parser.add_argument("--repetitions", type=int, default=300)
    options = parser.parse_args()
    chance = random.Random(2)
    ids = tuple(chance.randrange(49_152) for _ in range(options.tokens))
    seen, policy = snapshot(tuple(options.instances), options.tokens), RoutePolicy()
    request = RouteRequest(options.tokens, 1000, 300)

    hashing = cost(f"hashing {options.tokens} tokens", lambda: chain_hashes(ids, 16, "salt"), options.repetitions)
    deciding = cost(f"deciding over {len(seen.candidates)} instances", lambda: decide(seen, request, policy), options.repetitions)
    loop = cost(f"bare loop of {LOOP_TURNS} turns", bare_loop, options.repetitions)
    total = Cost("hashing and deciding", hashing.least_ms + deciding.least_ms, hashing.median_ms + deciding.median_ms)
    found = (hashing, deciding, total, loop)

    print(f"load {os.getloadavg()[0]:.1f}")
    print_table(("CPU", "least ms", "median ms"), [(one.what, f"{one.least_ms:.2f}", f"{one.median_ms:.2f}") for one in found])
    verdict = "met" if total.least_ms < TARGET_MS else "missed"
    print(f"target: under {TARGET_MS:g} ms together; {verdict} with {total.least_ms:.2f} ms")
    costs = {one.what: {"least_ms": one.least_ms, "median_ms": one.median_ms} for one in found}
    write_json(RESULTS / "routing.json", {"load_average": os.getloadavg()[0], "cpu": costs})


if __name__ == "__main__":
    main()
