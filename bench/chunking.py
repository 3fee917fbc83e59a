"""What P's throughput loses to tiny last chunks, over the hit rate.

    python -m bench.chunking                    dense-8b on gpu-a, chunks of 512, prompts of 3,440 tokens; half a minute
    python -m bench.chunking --chunk-tokens 1024 --hardware gpu-b

A sim prefill with a steady queue, in virtual time: the share of a prompt that it has cached goes from 0 to 95 % in steps of 5.
The prompts are as long as makes the missed part a little more than whole chunks at 25, 40, 55, 70 and 85 %. Two ways to cut it:

    ours    near-equal chunks, and what a prompt leaves of a step the next ones take (`pdd.engine.chunks`)
    naive   full chunks of one prompt at a time: its last one, however small, has a step to itself

    computed/s      prompt tokens computed a second
    prompt/s        prompt tokens served a second, hits included
    largest dip     how far a rate lies below the line through its neighbours, at worst. The line of prompt/s is drawn in seconds
                    a prompt: those are linear in the hit rate where nothing is lost, the rate itself is not
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.report import RESULTS, print_table, write_json
from pdd.engine.base import KvSource, Prefilled
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import Scheduler, StepLimits
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.reference import prompt_blocks
from pdd.engine.step import Work
from pdd.sampling import SamplingParams
from virtual.clock import run

HITS = tuple(percent / 100 for percent in range(0, 100, 5))
SAMPLING = SamplingParams(max_tokens=8, seed=0, temperature=0.0, ignore_eos=True)
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Setting:
    hardware: str = "gpu-a"
    prompt_tokens: int = 3440
    chunk_tokens: int = 512
    slots: int = 8
    queued: int = 12  # prompts that are there at any time
    steps: int = 120  # measured, about


@dataclass(frozen=True, slots=True)
class Point:
    hit: float  # of the prompt, in whole blocks
    computed_tokens_s: float
    prompt_tokens_s: float


class NaiveScheduler(Scheduler):
    """Prefills one prompt at a time, in full chunks and what is left."""

    def _prefills(self, works: list[Work], now_s: float, left: int) -> int:
        taken = 0
        for oldest in self._with_passes(prefill=True)[:1]:
            taken = min(oldest.owed, left, self._limits.chunk_tokens)
            works.append(oldest.work(taken, now_s))
        return taken


class NaiveEngine(BatchEngine):
    def __init__(self, model: SimModel, limits: StepLimits, compute: InlineCompute) -> None:
        super().__init__(model, limits, compute)
        self._scheduler = NaiveScheduler(model.capabilities, model.layout.block_tokens, limits)


def sweep(engine: type[BatchEngine], setting: Setting, hits: Sequence[float] = HITS) -> list[Point]:
    return [run(_measure, engine, setting, hit) for hit in hits]


async def _measure(kind: type[BatchEngine], setting: Setting, hit: float) -> Point:
    """The rates between two steps that each complete a prompt."""
    limits = StepLimits(setting.chunk_tokens, 2 * setting.chunk_tokens)
    model = SimConfig(
        slots=setting.slots,
        context_tokens=setting.prompt_tokens + SAMPLING.max_tokens,
        hardware=HARDWARE[setting.hardware],
        model=MODELS["dense-8b"],
    )
    prompt = [position % 1000 for position in range(setting.prompt_tokens)]
    blocks = round(hit * setting.prompt_tokens) // BLOCK_TOKENS
    missed = setting.prompt_tokens - blocks * BLOCK_TOKENS
    kv = KvSource(prompt_blocks(prompt, BLOCK_TOKENS)[:blocks])
    wanted = setting.queued - (-setting.steps * setting.chunk_tokens // missed)
    marks: list[tuple[float, int]] = []  # when a step completed prompts, and how many there were by then
    async with kind(SimModel(model), limits, InlineCompute()) as engine:
        for seq in range(setting.queued):
            engine.prefill(seq, prompt, SAMPLING, kv)
        done = 0
        async for batch in engine.steps():
            ended = sum(isinstance(event, Prefilled) for event in batch.events)
            for seq in range(setting.queued + done, setting.queued + done + ended):
                engine.prefill(seq, prompt, SAMPLING, kv)
            done += ended
            if ended and done >= setting.queued:
                marks.append((asyncio.get_running_loop().time(), done))
            if done >= wanted:
                break
    (start_s, before), (end_s, after) = marks[0], marks[-1]
    prompts_s = (after - before) / (end_s - start_s)
    return Point(blocks * BLOCK_TOKENS / setting.prompt_tokens, missed * prompts_s, setting.prompt_tokens * prompts_s)


def computed_dips(points: Sequence[Point]) -> list[float]:
    """By how much each inner point's rate of computed tokens is below the line through its neighbours; less than 0 is above."""
    return [
        1 - here.computed_tokens_s / _between(before, here, after, before.computed_tokens_s, after.computed_tokens_s)
        for before, here, after in zip(points, points[1:], points[2:], strict=False)
    ]


def prompt_dips(points: Sequence[Point]) -> list[float]:
    """The same of the prompts' rate, with the line drawn through their neighbours' seconds a token."""
    return [
        1 - here.prompt_tokens_s * _between(before, here, after, 1 / before.prompt_tokens_s, 1 / after.prompt_tokens_s)
        for before, here, after in zip(points, points[1:], points[2:], strict=False)
    ]


def _between(before: Point, here: Point, after: Point, first: float, last: float) -> float:
    """The line from `first` to `last` at `here`."""
    return first + (last - first) * (here.hit - before.hit) / (after.hit - before.hit)


def _print(ours: Sequence[Point], naive: Sequence[Point]) -> None:
    print_table(
        ("hit", "ours computed/s", "prompt/s", "naive computed/s", "prompt/s"),
        [(f"{mine.hit:.0%}", *_rates(mine), *_rates(other)) for mine, other in zip(ours, naive, strict=True)],
    )
    print()
    print_table(
        ("largest dip", "computed/s", "prompt/s"),
        [
            (name, f"{max(computed_dips(points)):.1%}", f"{max(prompt_dips(points)):.1%}")
            for name, points in (("ours", ours), ("naive", naive))
        ],
    )


def _rates(point: Point) -> tuple[str, str]:
    return f"{point.computed_tokens_s:,.0f}", f"{point.prompt_tokens_s:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Setting()
    parser.add_argument("--hardware", default=default.hardware, choices=sorted(HARDWARE))
    for name in ("prompt_tokens", "chunk_tokens", "slots", "queued", "steps"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument("--out", type=Path, default=RESULTS / "chunking.json")
    options = vars(parser.parse_args())
    out: Path = options.pop("out")
    setting = Setting(**options)
    found = {"ours": sweep(BatchEngine, setting), "naive": sweep(NaiveEngine, setting)}
    _print(found["ours"], found["naive"])
    dips = {name: {"computed": max(computed_dips(points)), "prompt": max(prompt_dips(points))} for name, points in found.items()}
    points = {name: [asdict(point) for point in of] for name, of in found.items()}
    write_json(out, {"setting": asdict(setting), "largest_dip": dips, **points})


if __name__ == "__main__":
    main()
