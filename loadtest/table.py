"""A test's statistics as one table, for the console and the web page. Pure: locust's statistics in, text out.

Called by `report`. A row is a kind of user on one API; the last one is all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from locust.stats import RequestStats, StatsEntry

from loadtest.measures import ANSWER, CANCELLED, HANDOFF_GAP, PIPELINE, TOKEN_GAP, TOKEN_RATE, TTFT

ALL = "all"
_QUANTILES = (0.5, 0.9, 0.99)
_SPREAD = ("p50", "p90", "p99", "max")
_NONE = "-"

HEAD = (
    "users",
    "answers",
    "errors",
    "cancelled",
    *(f"{kind} {at}" for kind in ("TTFT", "gap", "handoff") for at in _SPREAD),
    "tokens",
    "tok/s p50",
)


def rows(stats: RequestStats) -> list[tuple[str, ...]]:
    """For HEAD; times in ms."""
    names = sorted({name for name, kind in stats.entries if kind in (ANSWER, CANCELLED)})
    return [_row(stats, name, (name,)) for name in names] + [_row(stats, ALL, names)]


def pipeline_shares(stats: RequestStats) -> dict[str, tuple[int, float]]:
    """Of the whole answers: how many were planned for each, and their share."""
    counts = {name: entry.num_requests for (name, kind), entry in stats.entries.items() if kind == PIPELINE}
    total = sum(counts.values())
    return {name: (count, count / total) for name, count in sorted(counts.items(), key=lambda pair: -pair[1])}


def merged(stats: RequestStats, kind: str, names: Iterable[str]) -> StatsEntry:
    whole = StatsEntry(stats, ALL, kind)
    for name in names:
        if (name, kind) in stats.entries:
            whole.extend(stats.entries[(name, kind)])
    return whole


def text(stats: RequestStats) -> str:
    """The table, the shares of the pipelines, the tokens in a second of the whole test, and each error with its number."""
    shares = pipeline_shares(stats)
    planned = ", ".join(f"{name} {share:.0%} ({count})" for name, (count, share) in shares.items())
    tokens = sum(entry.total_content_length for (_, kind), entry in stats.entries.items() if kind == PIPELINE)
    took_s = (stats.last_request_timestamp or 0.0) - stats.start_time
    rate = f"{tokens} in {took_s:.1f} s: {tokens / took_s:.1f} a second" if took_s > 0 else "none"
    errors = [f"error, {error.occurrences} times: {error.name}: {error.error}" for error in stats.errors.values()]
    return "\n".join((*aligned((HEAD, *rows(stats))), f"pipelines: {planned or 'none'}", f"output tokens: {rate}", *errors))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join((line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))))
        for line in lines
    ]


def _row(stats: RequestStats, title: str, names: Sequence[str]) -> tuple[str, ...]:
    answers = merged(stats, ANSWER, names)
    rate = merged(stats, TOKEN_RATE, names)
    return (
        title,
        str(answers.num_requests - answers.num_failures),
        str(answers.num_failures),
        str(merged(stats, CANCELLED, names).num_requests),
        *(cell for kind in (TTFT, TOKEN_GAP, HANDOFF_GAP) for cell in _spread(merged(stats, kind, names))),
        str(answers.total_content_length),
        f"{rate.get_response_time_percentile(0.5):.0f}" if rate.num_requests else _NONE,
    )


def _spread(entry: StatsEntry) -> Sequence[str]:
    if not entry.num_requests:
        return [_NONE] * len(_SPREAD)
    values = [entry.get_response_time_percentile(quantile) for quantile in _QUANTILES]
    return [f"{value:.{1 if value < 10 else 0}f}" for value in (*values, entry.max_response_time)]
