"""Draws what happened to a request: one line per stage, on a common time axis, and the figures of the handoff below.

Called by `ask`. Pure: an answer's result in, something that rich can print out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdd.client import Result, Span, Timeline

_STYLES = {
    "prefill": "yellow",
    "transfer.relay": "blue",
    "transfer.main": "blue",
    "relay": "cyan",
    "extend": "magenta",
    "switch gap": "red",
    "main": "green",
}
_BAR_MINIMUM = 16
_COLUMNS_WIDTH = 62  # of all columns but the bar, with the space between, at their usual widths


@dataclass(frozen=True, slots=True)
class Row:
    """One stage. Times in seconds from the request's arrival."""

    stage: str
    instance: str
    start_s: float
    end_s: float
    tokens: int = 0
    bytes: int = 0


def rows(timeline: Timeline) -> tuple[Row, ...]:
    """The spans in the order they began, extend rounds numbered, with the gap at the switch before main's own."""
    spans = sorted(timeline.spans, key=lambda span: (span.start_s, span.end_s))
    return tuple(_rows(spans, timeline.switch_gap_s))


def _rows(spans: Sequence[Span], gap_s: float) -> Iterator[Row]:
    extends = Counter(span.name for span in spans)["extend"]
    number = 0
    for span in spans:
        stage = span.name
        if stage == "extend" and extends > 1:
            number += 1
            stage = f"extend {number}"
        if stage == "main" and gap_s > 0:
            yield Row("switch gap", "", max(0.0, span.start_s - gap_s), span.start_s)
        yield Row(stage, span.instance, span.start_s, span.end_s, span.tokens, span.bytes)


def bar(start: float, end: float, total: float, width: int) -> str:
    """A stage on an axis of `width` characters that stands for 0..`total`; at least one character wide."""
    if total <= 0 or width <= 0:
        return ""
    first = min(width - 1, int(start * width / total))
    last = min(width, math.ceil(end * width / total))
    return " " * first + "█" * max(1, last - first)


def draw(result: Result, width: int) -> RenderableType:
    """The whole picture for a console of `width` characters."""
    timeline = result.timeline
    found = rows(timeline)
    total = max((row.end_s for row in found), default=0.0)
    axis = max(_BAR_MINIMUM, width - _COLUMNS_WIDTH)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True)
    table.add_column("instance", no_wrap=True)
    table.add_column(f"0 … {total * 1000:.0f} ms", no_wrap=True, min_width=axis)
    for name in ("at ms", "took ms", "tokens", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found:
        style = _STYLES.get(row.stage.split(" ")[0] if row.stage.startswith("extend") else row.stage, "")
        table.add_row(
            Text(row.stage, style),
            row.instance,
            Text(bar(row.start_s, row.end_s, total, axis), style),
            f"{row.start_s * 1000:.0f}",
            f"{(row.end_s - row.start_s) * 1000:.0f}",
            str(row.tokens) if row.tokens else "",
            count_bytes(row.bytes) if row.bytes else "",
        )
    return Group(Text(_title(timeline)), table, Text(summary(result)))


def summary(result: Result) -> str:
    """The figures of the request and, where there was one, of its handoff."""
    timeline, usage = result.timeline, result.usage
    lines = [
        f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens (finish: {result.finish_reason})",
        f"{count_bytes(timeline.wan_kv_bytes)} of KV crossed the link",
    ]
    if timeline.handoff:
        lines += [
            f"{timeline.eager_tokens} eager tokens before main took over, "
            f"which computed {timeline.main_computed_tokens} tokens to do so",
            f"{timeline.switch_gap_s * 1000:.0f} ms from the relay's last token to main's first, "
            f"of which the user saw {timeline.user_gap_s * 1000:.0f} ms",
        ]
    if timeline.handoff and timeline.scored_tokens:
        lines.append(f"main would have chosen {timeline.agreed_tokens} of {timeline.scored_tokens} eager tokens itself")
    return "\n".join(lines)


def count_bytes(number: int) -> str:
    """Bytes for a person, in decimal units as links are rated in."""
    if number >= 1_000_000:
        return f"{number / 1e6:.1f} MB"
    if number >= 1_000:
        return f"{number / 1e3:.1f} kB"
    return f"{number} B"


def _title(timeline: Timeline) -> str:
    handoff = f", handoff {timeline.handoff}" if timeline.handoff else ""
    return f"\npipeline {timeline.pipeline}{handoff}"
