"""What the gateway costs: CPU time a streamed token and a request, and the time to the first token that it adds.

    python -m bench.gateway                                  all rows, about four minutes
    python -m bench.gateway --streams 64 --rounds 3          one number of streams, three times
    python -m bench.gateway --pipeline direct                without relay and handoff

The gateway is the real process with the real tokenizer, on a core of its own. Around it: a prefill, a relay and a main that cost
nothing (`gateway_instances`), and compiled clients (`gateway_load.c`), on another core. Answers are streamed chat completions.

    a token     CPU time of the gateway's process in the middle of a steady run of long answers, less what the requests among them
                cost, divided by the tokens made. Everything is in it: gRPC's threads, reading frames, the handoff machine, text,
                JSON, and the kernel's share of sending (TCP over loopback includes the receiver's half of the stack).
    a request   what a run of short answers costs beyond its tokens, divided by its requests: body, template, tokenising,
                placement, admissions, a whole handoff and its frames, the last events, the end.
    bare write  what a uvloop program pays a chunk for sending chunks of the same size at the same pace on the same core, and
                nothing else: no gateway on this kernel can be cheaper without sending less often.
    TTFT        from writing the request to the first byte of the first event. Instances answer at once, so all of it is added by
                the gateway and its two hops; clients and instances share a core, and their delays are in it too. Without a pace
                it is a queue's length, and says little.

CPU time is not wall time, but a busy machine disturbs it all the same: others' work empties the caches. The load is in the JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from bench.gateway_bare import bare_write_us
from bench.gateway_load import Load, LoadReport, compile_load, request_bytes
from bench.gateway_mesh import BenchMesh, MeshPlan, Reading, last_words, running_mesh
from bench.gateway_text import check_text
from bench.report import RESULTS, print_table, write_json

PROMPT = "Describe the harbour on the morning after the storm, boat by boat, in the manner of a log-book."
EAGER_TOKENS = 16
RAMP_S = 2.0  # a run's beginning, which is not measured


@dataclass(frozen=True, slots=True)
class Answers:
    """Tokens of the answers that tokens are measured on, and of those that requests are."""

    long: int
    short: int


PACED = Answers(512, 32)
# Without a pace the instances run ahead of the gateway by what gRPC buffers, a few thousand tokens. Were an answer shorter than
# its share of that, it would be made in one go, and most frames would hold a token or two, unlike an engine's.
FLAT_OUT = Answers(2048, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One load. CPU times in microseconds, TTFT in milliseconds."""

    pipeline: str
    streams: int
    pace_ms: float
    token_us: float
    bare_us: float
    request_us: float
    tokens_per_s: float
    gateway_cpu: float  # share of its core
    tokens_per_frame: float  # of a decoder
    tokens_per_event: float  # of a client
    ttft_p50_ms: float
    ttft_p99_ms: float
    ttft_samples: int
    load_average: float  # of the machine, the last minute, when the row was measured


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of one run."""

    reading: Reading
    seconds: float
    tokens_per_event: float
    report: LoadReport  # of the whole run


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._program = compile_load(folder)

    async def row(self, streams: int, pace_ms: float) -> Row:
        answers = PACED if pace_ms else FLAT_OUT
        long = await self._window(streams, pace_ms, answers.long)
        short = await self._window(streams, pace_ms, answers.short)
        request_s, token_s = _solve(long.reading, short.reading)
        event_bytes = long.report.bytes / long.report.events
        bare_us = await bare_write_us(
            streams, pace_ms / 1000, round(event_bytes), self._options.gateway_core, self._options.other_core
        )
        return Row(
            pipeline=self._options.pipeline,
            streams=streams,
            pace_ms=pace_ms,
            token_us=token_s * 1e6,
            bare_us=bare_us,
            request_us=request_s * 1e6,
            tokens_per_s=long.reading.tokens / long.seconds,
            gateway_cpu=long.reading.cpu_s / long.seconds,
            tokens_per_frame=long.reading.tokens / long.reading.frames,
            tokens_per_event=long.tokens_per_event,
            ttft_p50_ms=_quantile(long.report.ttft_us, 0.5) / 1000,
            ttft_p99_ms=_quantile(long.report.ttft_us, 0.99) / 1000,
            ttft_samples=len(long.report.ttft_us),
            load_average=os.getloadavg()[0],
        )

    async def _window(self, streams: int, pace_ms: float, tokens: int) -> Window:
        options = self._options
        plan = MeshPlan(
            options.model_dir, options.pipeline, pace_ms, min(EAGER_TOKENS, tokens // 2), options.gateway_core, options.other_core
        )
        async with running_mesh(plan, self._folder) as mesh:
            body = self._body(tokens)
            await check_text(mesh.http, body, options.model_dir)
            answer_us = round(tokens * pace_ms * 1000)
            ramp_s = RAMP_S + answer_us / 1e6
            load = await self._start(mesh, body, streams, stagger_us=answer_us // streams, seconds=ramp_s + options.seconds)
            await asyncio.sleep(ramp_s)
            before, before_s = mesh.read(), asyncio.get_running_loop().time()
            await asyncio.sleep(options.seconds)
            after, after_s = mesh.read(), asyncio.get_running_loop().time()
            try:
                report = await load.end()
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{last_words(self._folder)}") from error
            return Window(after.since(before), after_s - before_s, mesh.read().tokens / report.events, report)

    def _body(self, tokens: int) -> dict[str, object]:
        return {
            "model": self._options.model_dir.name,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.8,
            "stream": True,
        }

    async def _start(self, mesh: BenchMesh, body: dict[str, object], streams: int, *, stagger_us: int, seconds: float) -> Load:
        request = self._folder / "request"
        request.write_bytes(request_bytes(mesh.http, body))
        return await Load.start(
            self._program,
            mesh.http,
            request,
            streams=streams,
            stagger_us=stagger_us,
            seconds=seconds,
            core=self._options.other_core,
        )


def _solve(long: Reading, short: Reading) -> tuple[float, float]:
    """CPU seconds of a request and of a token, from two runs: cpu = requests × a + tokens × b in both."""
    determinant = short.requests * long.tokens - long.requests * short.tokens
    request_s = (short.cpu_s * long.tokens - long.cpu_s * short.tokens) / determinant
    token_s = (long.cpu_s * short.requests - short.cpu_s * long.requests) / determinant
    return request_s, token_s


def _quantile(samples: Sequence[int], share: float) -> float:
    ordered = sorted(samples)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


HEAD = ("load", "µs/token", "bare", "µs/request", "tokens/s", "core", "tok/frame", "tok/event", "TTFT p50", "p99", "machine")


def _line(row: Row) -> tuple[str, ...]:
    return (
        f"{row.pipeline}, {row.streams} streams, " + (f"{row.pace_ms:g} ms" if row.pace_ms else "flat out"),
        f"{row.token_us:.1f}",
        f"{row.bare_us:.1f}",
        f"{row.request_us:.0f}",
        f"{row.tokens_per_s:.0f}",
        f"{row.gateway_cpu:.0%}",
        f"{row.tokens_per_frame:.1f}",
        f"{row.tokens_per_event:.1f}",
        f"{row.ttft_p50_ms:.1f} ms",
        f"{row.ttft_p99_ms:.1f} ms",
        f"load {row.load_average:.1f}",
    )


def _median(rows: Sequence[Row]) -> Row:
    """Field by field, over rounds of the same load."""
    first = asdict(rows[0])
    numbers = {
        name: statistics.median(asdict(row)[name] for row in rows) for name, value in first.items() if isinstance(value, float)
    }
    return Row(**{**first, **numbers})


async def measure(options: argparse.Namespace) -> list[Row]:
    """The median of each load's rounds."""
    medians: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as folder:
        bench = Bench(options, Path(folder))
        for streams in options.streams:
            for pace_ms in options.pace_ms:
                rows = []
                for _ in range(options.rounds):
                    rows.append(await bench.row(streams, pace_ms))
                    print("  ".join(_line(rows[-1])), flush=True)
                medians.append(_median(rows))
    return medians


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--pipeline", choices=("relay", "direct"), default="relay")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--pace-ms", type=float, nargs="+", default=[10.0, 0.0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, of each run")
    parser.add_argument("--gateway-core", type=int, default=cores[0])
    parser.add_argument("--other-core", type=int, default=cores[-1])
    parser.add_argument("--json", type=Path, default=RESULTS / "gateway.json")
    options = parser.parse_args()
    rows = uvloop.run(measure(options))
    print()
    print_table(HEAD, [_line(row) for row in rows])
    write_json(options.json, {"rounds": options.rounds, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
