"""What it costs to hand 100 eager tokens from the relay to main: as ids in each mode, and as KV.

    python -m bench.handoff                   a line of 1 Gbit/s, 40 ms RTT, 10 ms of jitter; 30 seeds a row, about a minute
    python -m bench.handoff --loss 1e-4       the same with lost packets
    python -m bench.handoff --real            the real model over real processes: Catch-Up against One-Shot, half a minute

Rows of ids are a mesh in virtual time: dense-8b on a device that takes 25 ms a step, a prompt whose KV crosses in the time in
which the relay makes the tokens, and four other requests that decode on the same main. A seed decides the jitter and where in a
step things fall. `first` is a pair's first handoff, decided on what is believed of any pair; `later` is one decided on what the
first has taught. Rows of KV are reckoned at the engine's level, see `handoff_kv`: with the bytes a token of the published
measurement of such a handoff, and with those of the model at hand.

    bytes        serialised, of all messages: Extends, what the relay is told and answers, and all that main says of the request
                 up to its first token, with that; by mode, of handoffs without the others, whose tokens would share the frames
    latency      from the news that main has the prompt's KV to main's first token, at the gateway
    raw gap      from the relay's last token to main's first, at the gateway; the mean and the largest of all seeds
    user's gap   the longest that the reader of the stream has waited around the switch; the largest of all seeds
    bystanders   the longest that a reader of the others has waited during the handoff and a step more, and in as long a time just
                 before it; the largest of all seeds
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.handoff_kv import ship_kv
from bench.handoff_mesh import WAYS, eager_tokens, handoff_bytes, one_handoff
from bench.handoff_real import compare
from bench.handoff_setting import MODEL, STEP_S, Sample, Setting
from bench.report import RESULTS, print_table, write_json
from gateway.mesh.settings import HandoffChoice
from pdd.telemetry import configure_logging
from virtual.clock import run
from wan.link import LinkSettings

PUBLISHED_TOKEN_BYTES = 46_490  # 4649 KB for 100 tokens
BYTES_SEEDS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """A way over all seeds; times in milliseconds."""

    way: str
    handoffs: int
    modes: dict[str, int]  # how many went which way in the end
    eager_tokens: float
    bytes: float
    latency_ms: float
    latency_deviation_ms: float
    latency_max_ms: float
    raw_gap_ms: float
    raw_gap_max_ms: float
    user_gap_max_ms: float | None
    bystander_gap_max_ms: float
    bystander_before_max_ms: float


def summary(way: str, samples: Sequence[Sample], sizes: Mapping[str, float]) -> Row:
    """`sizes`: the bytes of a handoff that went in a mode."""
    latencies_ms = [1000 * sample.latency_s for sample in samples]
    raw_gaps_ms = [1000 * sample.raw_gap_s for sample in samples]
    user_gaps_ms = [1000 * sample.user_gap_s for sample in samples if sample.user_gap_s is not None]
    return Row(
        way=way,
        handoffs=len(samples),
        modes=dict(Counter(sample.mode for sample in samples)),
        eager_tokens=statistics.mean(sample.eager_tokens for sample in samples),
        bytes=statistics.mean(sizes[sample.mode] for sample in samples),
        latency_ms=statistics.mean(latencies_ms),
        latency_deviation_ms=statistics.pstdev(latencies_ms),
        latency_max_ms=max(latencies_ms),
        raw_gap_ms=statistics.mean(raw_gaps_ms),
        raw_gap_max_ms=max(raw_gaps_ms),
        user_gap_max_ms=max(user_gaps_ms, default=None),
        bystander_gap_max_ms=max(1000 * sample.bystander_gap_s for sample in samples),
        bystander_before_max_ms=max(1000 * sample.bystander_before_s for sample in samples),
    )


def ids_rows(setting: Setting, seeds: int) -> list[Row]:
    sizes = {
        choice.value: statistics.mean(run(handoff_bytes, setting, choice, seed) for seed in range(BYTES_SEEDS))
        for choice in (HandoffChoice.ONE_SHOT, HandoffChoice.CATCH_UP)
    }
    return [summary(way.name, [run(one_handoff, setting, way, seed) for seed in range(seeds)], sizes) for way in WAYS]


def kv_row(setting: Setting, name: str, token_bytes: int, seeds: int) -> Row:
    samples = [run(ship_kv, setting, token_bytes, seed) for seed in range(seeds)]
    return summary(name, samples, {"kv": setting.eager_tokens * token_bytes})


def with_prompt(setting: Setting) -> Setting:
    """Choose a prompt whose KV crosses while the relay makes the wanted tokens."""
    token_s = setting.model.kv_bytes / setting.link.bytes_per_s
    first = replace(setting, prompt_tokens=round(setting.eager_tokens * setting.step_s / token_s))
    made = run(eager_tokens, first)
    return replace(first, prompt_tokens=first.prompt_tokens + round((setting.eager_tokens - made) * setting.step_s / token_s))


HEAD = (
    *("way", "went", "eager", "bytes", "latency mean", "deviation", "max"),
    *("raw gap mean", "max", "user's gap", "bystanders", "before"),
)


def _line(row: Row) -> tuple[str, ...]:
    milliseconds = (
        *(row.latency_ms, row.latency_deviation_ms, row.latency_max_ms, row.raw_gap_ms, row.raw_gap_max_ms),
        *(row.user_gap_max_ms, row.bystander_gap_max_ms, row.bystander_before_max_ms),
    )
    return (
        row.way,
        " ".join(f"{mode} {count}" for mode, count in row.modes.items()),
        f"{row.eager_tokens:.0f}",
        f"{row.bytes:.0f}",
        *("–" if value is None else f"{value:.1f} ms" for value in milliseconds),
    )


def measure(setting: Setting, seeds: int, path: Path) -> None:
    setting = with_prompt(setting)
    rows = ids_rows(setting, seeds)
    rows.append(kv_row(setting, "KV, 46.5 KB a token", PUBLISHED_TOKEN_BYTES, seeds))
    rows.append(kv_row(setting, f"KV, {MODEL.kv_bytes / 1000:.0f} KB a token", MODEL.kv_bytes, seeds))
    print_table(HEAD, [_line(row) for row in rows])
    link = setting.link
    print(f"\n{link.rate_mbit:g} Mbit/s, {link.rtt_ms:g} ms RTT, {link.jitter_ms:g} ms of jitter, {link.loss:g} of packets lost")
    print(f"{1000 * STEP_S:g} ms a step, {setting.bystanders} bystanders, prompts of {setting.prompt_tokens} tokens")
    found = {"link": {**asdict(link), "outage": link.outage.value}, "step_s": STEP_S, "prompt_tokens": setting.prompt_tokens}
    write_json(path, {**found, "bystanders": setting.bystanders, "rows": [asdict(row) for row in rows]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--eager-tokens", type=int, default=100)
    parser.add_argument("--bystanders", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=1000.0)
    parser.add_argument("--rtt-ms", type=float, default=40.0)
    parser.add_argument("--jitter-ms", type=float, default=10.0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets")
    parser.add_argument("--real", action="store_true", help="the real model over real processes instead")
    parser.add_argument("--rounds", type=int, default=3, help="answers a mode, with --real")
    parser.add_argument("--model-dir", type=Path, default=Path("models/SmolLM2-135M-Instruct"), help="with --real")
    parser.add_argument("--json", type=Path, help="default: bench/results/handoff.json, or handoff_real.json")
    options = parser.parse_args()
    configure_logging("error", "bench")
    if options.real:
        asyncio.run(compare(options.model_dir, options.rtt_ms, options.rounds, options.json or RESULTS / "handoff_real.json"))
        return
    link = LinkSettings(rate_mbit=options.rate_mbit, rtt_ms=options.rtt_ms, jitter_ms=options.jitter_ms, loss=options.loss)
    setting = Setting(link, options.bystanders, options.eager_tokens)
    measure(setting, options.seeds, options.json or RESULTS / "handoff.json")


if __name__ == "__main__":
    main()
