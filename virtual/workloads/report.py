"""Records as a table: one line a pipeline, and one for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virtual.workloads.percentile import percentile
from virtual.workloads.record import Record

HEAD = (
    "pipeline",
    "requests",
    "errors",
    "prompt",  # mean tokens
    "cached",  # share of the prompts' tokens, on prefill
    "on main",
    "TTFT p50 s",
    "p90",
    "p99",
    "2nd token p50 ms",
    "p99",
    "ITL p50 ms",  # the median request's median
    "gap max p50 ms",  # the median request's largest gap
    "p99",
    "tokens",
    "eager",  # share of the tokens made before main took over
    "WAN GB",
)


def lines(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """For HEAD. The first line is of all; times are of requests that ended well, and a failed one has no pipeline."""
    pipelines = sorted({record.pipeline for record in records if record.pipeline})
    of_each = [_line(name, [record for record in records if record.pipeline == name]) for name in pipelines]
    return [_line("all", records), *of_each]


def error_counts(records: Sequence[Record]) -> dict[str, int]:
    """By code."""
    codes = [record.error for record in records if record.error]
    return {code: codes.count(code) for code in sorted(set(codes))}


def _line(name: str, records: Sequence[Record]) -> tuple[str, ...]:
    served = [record for record in records if not record.error]

    def at(percent: float, of: Callable[[Record], float], unit: float = 1.0) -> str:
        return f"{percentile([of(record) for record in served], percent) * unit:.{2 if unit == 1.0 else 0}f}"

    prompt = sum(record.prompt_tokens for record in served)
    tokens = sum(record.tokens for record in served)
    return (
        name,
        str(len(records)),
        str(len(records) - len(served)),
        f"{prompt / max(1, len(served)):.0f}",
        f"{sum(record.cached_tokens for record in served) / max(1, prompt):.1%}",
        f"{sum(record.main_cached_tokens for record in served) / max(1, prompt):.1%}",
        *(at(percent, lambda record: record.ttft_s) for percent in (50, 90, 99)),
        *(at(percent, lambda record: record.second_s, 1000) for percent in (50, 99)),
        at(50, lambda record: record.gap_p50_s, 1000),
        *(at(percent, lambda record: record.gap_max_s, 1000) for percent in (50, 99)),
        str(tokens),
        f"{sum(record.eager_tokens for record in served) / max(1, tokens):.1%}",
        f"{sum(record.wan_bytes for record in served) / 1e9:.2f}",
    )
