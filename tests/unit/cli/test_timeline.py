import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pdd.cli.timeline import bar, count_bytes, draw, rows, summary
from pdd.client import Result, Span, Timeline, Usage

SPANS = [
    ("main", "main-0", 900, 2000, 100, 0),
    ("prefill", "prefill-0", 0, 300, 64, 0),
    ("transfer.relay", "relay-0", 100, 310, 0, 1_474_560),
    ("transfer.main", "main-0", 100, 700, 0, 1_474_560),
    ("extend", "main-0", 700, 780, 40, 0),
    ("extend", "main-0", 800, 880, 5, 0),
    ("relay", "relay-0", 310, 850, 45, 0),
]


def make_result(gap_ms: int = 40, handoff: str = "catch_up") -> Result:
    spans = [
        Span(name, instance, start_ms / 1000, end_ms / 1000, tokens, size)
        for name, instance, start_ms, end_ms, tokens, size in SPANS
    ]
    timeline = Timeline(
        pipeline="relay",
        handoff=handoff,
        spans=tuple(spans),
        switch_gap_s=gap_ms / 1000,
        user_gap_s=0.012,
        scored_tokens=45,
        agreed_tokens=44,
        eager_tokens=46,
        main_computed_tokens=51,
        main_cached_tokens=0,
        wan_kv_bytes=1_474_560,
    )
    return Result("", (), (), "length", Usage(69, 146, 0), timeline, plan="", request_id="")


def make_empty_result() -> Result:
    timeline = Timeline("direct", "", (), 0.0, 0.0, 0, 0, 0, 0, 0, 0)
    return Result("", (), (), "stop", Usage(0, 0, 0), timeline, plan="", request_id="")


def drawn(result: Result, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw(result, console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_stages_come_in_the_order_they_began_with_extends_numbered_and_the_gap_before_main() -> None:
    assert [row.stage for row in rows(make_result().timeline)] == [
        "prefill",
        "transfer.relay",
        "transfer.main",
        "relay",
        "extend 1",
        "extend 2",
        "switch gap",
        "main",
    ]


def test_the_gap_ends_where_main_begins() -> None:
    gap = next(row for row in rows(make_result(gap_ms=40).timeline) if row.stage == "switch gap")
    assert gap.start_s == pytest.approx(0.86)
    assert gap.end_s == 0.9


def test_a_request_without_a_switch_has_no_gap() -> None:
    result = make_result(gap_ms=0, handoff="")
    assert "switch gap" not in [row.stage for row in rows(result.timeline)]
    assert "eager" not in summary(result)


def test_the_picture_tells_every_figure() -> None:
    text = drawn(make_result())
    for expected in (
        "pipeline relay, handoff catch_up",
        "0 … 2000 ms",
        "prefill-0",
        "1.5 MB",
        "146 output tokens",
        "46 eager tokens",
        "which computed 51 tokens to do so",
        "40 ms from the relay's last token to main's first, of which the user saw 12 ms",
        "main would have chosen 44 of 45 eager tokens itself",
    ):
        assert expected in text


def test_the_picture_fits_into_an_ordinary_terminal() -> None:
    text = drawn(make_result(), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text.replace("0 … 2000 ms", "")


def test_an_empty_timeline_can_be_drawn() -> None:
    assert "0 output tokens" in drawn(make_empty_result())


@given(st.floats(0, 1), st.floats(0, 1e9), st.floats(1e-6, 1e9), st.integers(1, 200))
def test_a_bar_is_visible_and_stays_on_its_axis(part: float, length: float, total: float, width: int) -> None:
    start = part * total
    end = min(total, start + length)
    text = bar(start, end, total, width)
    assert 1 <= len(text) <= width
    assert text.strip() == "█" * text.count("█") != ""


def test_bytes_are_counted_in_decimal_units() -> None:
    assert [count_bytes(number) for number in (999, 4649, 23_040_000)] == ["999 B", "4.6 kB", "23.0 MB"]
