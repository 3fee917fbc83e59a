"""How fast virtual time runs: a mesh of twelve instances under load in one process.

    python -m bench.virtual                     2 prefills, 4 relays, 6 mains, 64 sequences a main; about a minute
    python -m bench.virtual --profile           where the wall time goes, by function (runs about half as fast)
    python -m bench.virtual --prefills 1 --relays 1 --mains 1

The instances play dense-8b on gpu-a: decode steps of about 25 ms, KV of 131 KB a token. Every main has as many clients as slots;
each asks again as soon as it has its answer, and reads as the HTTP server does, in the call that brings the tokens. They begin
one by one, over the time of one answer. Measured is one answer of each client, after the first: on average a whole one, with
its prefill, its transfers and its handoff.

    µs a token         wall time of the process over the tokens that clients were handed: engines, frames, links, gateway, clients
    virtual s a s      how much faster than time the mesh runs
    steps              callbacks of the event loop, a token
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.report import RESULTS, print_table, write_json
from bench.virtual_profile import print_profile
from gateway.generation import Generation, GenerationSpec, Generator, MeshError, Tokens
from pdd.catalog.base import Role
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.model import SimConfig
from pdd.sampling import SamplingParams
from pdd.telemetry import configure_logging
from virtual.clock import VirtualLoop, run
from virtual.mesh import InstanceSpec, MeshSpec, running_mesh
from wan.link import LinkSettings

STEP_S = 0.025  # of a decoder with few sequences: the time to read the weights
LINK = LinkSettings(rate_mbit=10_000.0, rtt_ms=40.0)
MODEL = MODELS["dense-8b"]
GPU = replace(HARDWARE["gpu-a"], memory_bytes_s=MODEL.weight_bytes / STEP_S, overhead_s=0.0)
LIMITS = StepLimits(chunk_tokens=512, step_tokens=512)
CONTEXT_TOKENS = 2048
KV_BUDGET_BYTES = 64 << 30  # declared, of an instance


@dataclass(frozen=True, slots=True)
class Load:
    prefills: int
    relays: int
    mains: int
    sequences: int  # of a main
    prompt_tokens: int
    answer_tokens: int
    rounds: int  # answers of each client that are measured

    @property
    def clients(self) -> int:
        return self.mains * self.sequences

    def mesh(self) -> MeshSpec:
        model = SimConfig(slots=self.sequences, context_tokens=CONTEXT_TOKENS, hardware=GPU, model=MODEL)
        counts = {Role.PREFILL: self.prefills, Role.RELAY: self.relays, Role.MAIN: self.mains}
        return MeshSpec(
            tuple(InstanceSpec(role, model, LIMITS, KV_BUDGET_BYTES) for role, count in counts.items() for _ in range(count)),
            LINK,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment of a run."""

    wall_s: float
    cpu_s: float
    virtual_s: float
    loop_steps: int
    tokens: int
    main_tokens: int
    answers: int


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    instances: int
    clients: int
    tokens: int
    answers: int
    main_share: float  # of the tokens
    virtual_s: float
    wall_s: float
    speed: float  # virtual seconds a wall second
    token_us: float  # wall time
    token_cpu_us: float  # CPU time: the same on a machine with nothing else to do
    token_steps: float  # of the event loop


class Crowd:
    """All clients, and what they were handed."""

    def __init__(self, load: Load) -> None:
        self.tokens = 0
        self.main_tokens = 0
        self.answers = 0
        self._load = load

    async def client(self, generator: Generator, number: int) -> None:
        """Ask for one answer after the other, for ever; begin as late in the ramp as the client's number says."""
        load = self._load
        prompt = tuple((7 * position + 31 * number) % 1000 for position in range(load.prompt_tokens))
        sampling = SamplingParams(max_tokens=load.answer_tokens, seed=number, temperature=0.0, ignore_eos=True)
        await asyncio.sleep(number / load.clients * load.answer_tokens * STEP_S)
        while True:
            async with generator.generate(GenerationSpec(prompt, sampling, "bench")) as generation:
                await Reader(self, generation).run()
            self.answers += 1

    async def until_answers(self, count: int) -> None:
        while self.answers < count:  # noqa: ASYNC110  # a poll costs next to nothing in virtual time
            await asyncio.sleep(STEP_S)

    def count(self, tokens: Tokens) -> None:
        self.tokens += len(tokens.tokens)
        if tokens.source.startswith(Role.MAIN.value):
            self.main_tokens += len(tokens.tokens)

    def mark(self) -> Mark:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return Mark(
            time.perf_counter(), time.process_time(), loop.time(), loop.steps, self.tokens, self.main_tokens, self.answers
        )


class Reader:
    """Takes the tokens of one answer in the very call that brings them, as the HTTP server's outlet does."""

    def __init__(self, crowd: Crowd, generation: Generation) -> None:
        self._crowd = crowd
        self._generation = generation
        self._ended = asyncio.Event()
        self._error: MeshError | None = None

    async def run(self) -> None:
        self._generation.listen(self._heard)
        self._heard()
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    def _heard(self) -> None:
        try:
            while (item := self._generation.take()) is not None:
                if isinstance(item, Tokens):
                    self._crowd.count(item)
                else:
                    self._ended.set()
        except MeshError as error:
            self._error = error
            self._ended.set()


async def measure(load: Load, profile: cProfile.Profile | None) -> Row:
    crowd = Crowd(load)
    async with running_mesh(load.mesh()) as mesh, asyncio.TaskGroup() as group:
        clients = [group.create_task(crowd.client(mesh.gateway, number)) for number in range(load.clients)]
        await crowd.until_answers(load.clients)
        before = crowd.mark()
        with profile or nullcontext():
            await crowd.until_answers((1 + load.rounds) * load.clients)
        after = crowd.mark()
        for client in clients:
            client.cancel()
    return _row(load, before, after)


def _row(load: Load, before: Mark, after: Mark) -> Row:
    wall_s, virtual_s, tokens = after.wall_s - before.wall_s, after.virtual_s - before.virtual_s, after.tokens - before.tokens
    return Row(
        instances=load.prefills + load.relays + load.mains,
        clients=load.clients,
        tokens=tokens,
        answers=after.answers - before.answers,
        main_share=(after.main_tokens - before.main_tokens) / tokens,
        virtual_s=virtual_s,
        wall_s=wall_s,
        speed=virtual_s / wall_s,
        token_us=wall_s / tokens * 1e6,
        token_cpu_us=(after.cpu_s - before.cpu_s) / tokens * 1e6,
        token_steps=(after.loop_steps - before.loop_steps) / tokens,
    )


HEAD = (
    "instances",
    "clients",
    "tokens",
    "answers",
    "by mains",
    "virtual s",
    "wall s",
    "virtual s a s",
    "µs a token",
    "CPU µs",
    "steps a token",
)


def _line(row: Row) -> tuple[str, ...]:
    return (
        str(row.instances),
        str(row.clients),
        str(row.tokens),
        str(row.answers),
        f"{row.main_share:.1%}",
        f"{row.virtual_s:.0f}",
        f"{row.wall_s:.2f}",
        f"{row.speed:.2f}",
        f"{row.token_us:.1f}",
        f"{row.token_cpu_us:.1f}",
        f"{row.token_steps:.2f}",
    )


def _load(options: argparse.Namespace) -> Load:
    return Load(
        options.prefills,
        options.relays,
        options.mains,
        options.sequences,
        options.prompt_tokens,
        options.answer_tokens,
        options.rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefills", type=int, default=2)
    parser.add_argument("--relays", type=int, default=4)
    parser.add_argument("--mains", type=int, default=6)
    parser.add_argument("--sequences", type=int, default=64, help="of a main")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=1, help="measured answers of each client")
    parser.add_argument("--repeats", type=int, default=3, help="of the whole run")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most, instead of results")
    parser.add_argument("--json", type=Path, default=RESULTS / "virtual.json")
    options = parser.parse_args()
    configure_logging("error", "bench")
    load = _load(options)
    if options.profile:
        profile = cProfile.Profile()
        row = run(measure, load, profile)
        print_profile(profile, row.tokens)
        return
    rows = [run(measure, load, None) for _ in range(options.repeats)]
    print_table(HEAD, [_line(row) for row in rows])
    best = min(rows, key=lambda row: row.token_us)
    write_json(options.json, {"load": asdict(load), "best": asdict(best), "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
