"""The line's model on given times. Sizes and rates are chosen so that times are round: 8 Mbit/s carry 1 byte in a microsecond."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wan.link import Chunk, Direction, LinkSettings, Outage

MICRO = 1e-6
ONE_BYTE_A_MICROSECOND = 8.0  # Mbit/s
TOLERANCE_S = 1e-9

Line = Direction[str, int]


def line(**settings: object) -> Line:
    return Direction(LinkSettings(**{"rate_mbit": ONE_BYTE_A_MICROSECOND} | settings), Random(1))  # type: ignore[arg-type]


def chunk(size: int, flow: str = "a", item: int = 0) -> Chunk[str, int]:
    return Chunk(flow, item, size)


def drain(direction: Line, until_s: float = math.inf) -> list[tuple[float, Chunk[str, int]]]:
    """Run the line until a time, or until nothing moves: what arrived, with its time."""
    arrived: list[tuple[float, Chunk[str, int]]] = []
    while (next_s := direction.next_s()) is not None and next_s <= until_s:
        arrived.extend((next_s, chunk) for chunk in direction.advance(next_s))
    return arrived


def times(direction: Line) -> list[float]:
    return [when_s for when_s, _ in drain(direction)]


def test_chunk_takes_its_time_on_the_line_and_half_a_round_trip() -> None:
    direction = line(rtt_ms=40)
    direction.push(chunk(1000), now_s=5.0)
    assert times(direction) == pytest.approx([5.0 + 1000 * MICRO + 0.020])


def test_nothing_arrives_before_its_time() -> None:
    direction = line(rtt_ms=40)
    direction.push(chunk(1000), now_s=0.0)
    assert direction.advance(0.0209) == []
    assert direction.advance(0.0211) == [chunk(1000)]


def test_chunks_queue_behind_each_other_whosever_they_are() -> None:
    direction = line()
    for flow in ("a", "b", "a"):
        direction.push(chunk(1000, flow), now_s=0.0)
    assert times(direction) == pytest.approx([1000 * MICRO, 2000 * MICRO, 3000 * MICRO])


def test_four_megabytes_at_20_mbit_take_1_6_seconds() -> None:
    direction = line(rate_mbit=20)
    now_s = last_s = 0.0
    for _ in range(400):
        while not direction.has_room(now_s):
            now_s = direction.next_s() or math.inf
            direction.advance(now_s)
        direction.push(chunk(10_000), now_s)
    last_s = drain(direction)[-1][0]
    assert last_s == pytest.approx(1.6)


def test_idle_line_saves_nothing_up() -> None:
    direction = line()
    direction.push(chunk(1000), now_s=0.0)
    assert times(direction) == pytest.approx([1000 * MICRO])
    direction.push(chunk(1000), now_s=1.0)
    assert times(direction) == pytest.approx([1.0 + 1000 * MICRO])


def test_chunk_pushed_late_does_not_leave_early() -> None:
    direction = line()
    direction.push(chunk(1000), now_s=0.0)
    direction.push(chunk(1000), now_s=0.5)  # nobody called `advance` in between
    assert direction.advance(0.5) == [chunk(1000)]
    assert times(direction) == pytest.approx([0.5 + 1000 * MICRO])


def test_line_without_a_rate_only_delays() -> None:
    direction = line(rate_mbit=None, rtt_ms=10)
    for _ in range(3):
        direction.push(chunk(10**9), now_s=1.0)
    assert times(direction) == pytest.approx([1.005] * 3)


def test_mark_keeps_its_place_and_takes_no_time() -> None:
    direction = line()
    direction.push(chunk(1000, item=1), now_s=0.0)
    direction.push(chunk(0, item=2), now_s=0.0)
    arrived = drain(direction)
    assert [chunk.item for _, chunk in arrived] == [1, 2]
    assert [when_s for when_s, _ in arrived] == pytest.approx([1000 * MICRO] * 2)


def test_queue_is_full_at_fifty_milliseconds_of_the_line_and_has_room_again() -> None:
    direction = line()
    direction.push(chunk(49_999), now_s=0.0)
    assert direction.has_room(0.0)
    direction.push(chunk(1), now_s=0.0)
    assert not direction.has_room(0.0)
    assert not direction.has_room(0.0499)
    assert direction.has_room(0.05)


@pytest.mark.parametrize(
    ("rate_mbit", "chunk_bytes", "queue_bytes"),
    [
        (0.1, 2 << 10, 32 << 10),
        (20, 12_500, 125_000),
        (1000, 64 << 10, 6_250_000),
        (100_000, 64 << 10, 8 << 20),
        (None, 64 << 10, 8 << 20),
    ],
)
def test_chunk_and_queue_follow_the_rate_within_bounds(rate_mbit: float | None, chunk_bytes: int, queue_bytes: int) -> None:
    settings = LinkSettings(rate_mbit)
    assert (settings.chunk_bytes, settings.queue_bytes) == (chunk_bytes, queue_bytes)


def test_window_covers_a_long_line() -> None:
    assert LinkSettings(800, rtt_ms=40).window_bytes == 14_000_000
    assert LinkSettings(20, rtt_ms=40).window_bytes == 350_000
    assert LinkSettings(0.1, rtt_ms=40).window_bytes == 128 << 10
    assert LinkSettings(None, rtt_ms=40).window_bytes == 16 << 20
    assert LinkSettings(None).window_bytes == 128 << 10


def test_jitter_is_within_its_bound_and_lets_nobody_overtake() -> None:
    direction = line(rtt_ms=10, jitter_ms=4)
    sent_s: list[float] = []
    arrived: list[tuple[float, Chunk[str, int]]] = []
    for number in range(200):
        now_s = number * 0.001
        arrived += drain(direction, now_s)
        direction.push(chunk(100, "ab"[number % 2], number), now_s)
        sent_s.append(now_s + 100 * MICRO)
    arrived += drain(direction)
    assert [chunk.item for _, chunk in arrived] == list(range(200))
    late_s = [when_s - sent - 0.005 for (when_s, _), sent in zip(arrived, sent_s, strict=True)]
    assert min(late_s) >= -TOLERANCE_S
    assert max(late_s) <= 0.004 + TOLERANCE_S
    assert max(late_s) - min(late_s) > 0.001


class LosesFirst(Random):
    """Loses the first chunk that is asked about, and no other."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked = 0

    def random(self) -> float:
        self.asked += 1
        return 0.0 if self.asked == 1 else 1.0


def test_loss_stalls_its_own_connection_for_a_round_trip_and_no_other() -> None:
    direction: Line = Direction(LinkSettings(ONE_BYTE_A_MICROSECOND, rtt_ms=40, loss=0.01), LosesFirst())
    for item, flow in enumerate(("lossy", "other", "lossy")):
        direction.push(chunk(1000, flow, item), now_s=0.0)
    arrived = drain(direction)
    assert [chunk.item for _, chunk in arrived] == [1, 0, 2]
    assert [when_s for when_s, _ in arrived] == pytest.approx([0.022, 0.061, 0.061])


@pytest.mark.parametrize(("size", "share"), [(100, 0.1), (1460 * 4, 1 - 0.9**4)])
def test_share_of_chunks_lost_follows_their_packets(size: int, share: float) -> None:
    direction: Line = Direction(LinkSettings(None, rtt_ms=40, loss=0.1), Random(1))
    for item in range(4000):
        direction.push(chunk(size, str(item)), now_s=0.0)
    late = sum(when_s > 0.03 for when_s, _ in drain(direction))
    assert late / 4000 == pytest.approx(share, abs=0.03)


def test_new_rate_holds_for_the_rest_of_a_chunk_and_for_what_is_queued() -> None:
    direction = line()
    direction.push(chunk(1000), now_s=0.0)
    direction.push(chunk(1000), now_s=0.0)
    direction.configure(LinkSettings(2 * ONE_BYTE_A_MICROSECOND), now_s=500 * MICRO)
    assert times(direction) == pytest.approx([750 * MICRO, 1250 * MICRO])


def test_new_delay_does_not_hurry_what_is_on_its_way() -> None:
    direction = line(rtt_ms=40)
    direction.push(chunk(1000, item=1), now_s=0.0)
    direction.configure(LinkSettings(ONE_BYTE_A_MICROSECOND, rtt_ms=0), now_s=0.010)
    direction.push(chunk(1000, item=2), now_s=0.010)
    assert [chunk.item for _, chunk in drain(direction)] == [1, 2]


def test_black_hole_holds_everything_and_lets_it_go_in_order() -> None:
    direction = line(rtt_ms=40)
    direction.push(chunk(1000, item=1), now_s=0.0)  # on its way when the hole opens
    direction.push(chunk(9000, item=2), now_s=0.0)  # half of it on the line
    hole = LinkSettings(ONE_BYTE_A_MICROSECOND, rtt_ms=40, outage=Outage.BLACK_HOLE)
    direction.configure(hole, now_s=5500 * MICRO)
    direction.push(chunk(1000, item=3), now_s=1.0)
    assert direction.next_s() is None
    assert direction.advance(60.0) == []
    direction.configure(LinkSettings(ONE_BYTE_A_MICROSECOND, rtt_ms=40), now_s=60.0)
    assert direction.advance(60.0) == [chunk(1000, item=1)]
    arrived = drain(direction)
    assert [chunk.item for _, chunk in arrived] == [2, 3]
    assert [when_s for when_s, _ in arrived] == pytest.approx([60.0 + 4500 * MICRO + 0.020, 60.0 + 5500 * MICRO + 0.020])


def test_black_hole_does_not_make_room() -> None:
    direction = line(outage=Outage.BLACK_HOLE)
    direction.push(chunk(50_000), now_s=0.0)
    assert not direction.has_room(1000.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate_mbit", 0.0),
        ("rate_mbit", -1.0),
        ("rate_mbit", math.inf),
        ("rate_mbit", math.nan),
        ("rtt_ms", -1.0),
        ("rtt_ms", math.nan),
        ("jitter_ms", -0.1),
        ("loss", 1.0),
        ("loss", -0.1),
        ("loss", math.nan),
    ],
)
def test_settings_that_no_line_has_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        LinkSettings(**{field: value})  # type: ignore[arg-type]


SETTINGS = st.builds(
    LinkSettings,
    rate_mbit=st.none() | st.floats(0.01, 10_000),
    rtt_ms=st.floats(0, 500),
    jitter_ms=st.floats(0, 50),
    loss=st.floats(0, 0.5),
    outage=st.sampled_from([Outage.NONE, Outage.BLACK_HOLE]),
)
STEPS = st.tuples(
    st.floats(0, 0.2),  # seconds since the step before
    st.sampled_from("abc") | SETTINGS,  # push for a flow, or change the line
    st.integers(0, 70_000),
)


@given(SETTINGS, st.lists(STEPS, max_size=40), st.integers(0, 2**32))
def test_whatever_the_line_each_chunk_arrives_once_and_in_its_connections_order(
    settings: LinkSettings, steps: list[tuple[float, str | LinkSettings, int]], seed: int
) -> None:
    direction: Line = Direction(settings, Random(seed))
    now_s, pushed, arrived = 0.0, [], []
    for number, (pause_s, what, size) in enumerate(steps):
        now_s += pause_s
        if number % 3 == 0:
            arrived += direction.advance(now_s)
        if isinstance(what, LinkSettings):
            direction.configure(what, now_s)
        else:
            pushed.append(chunk(size, what, number))
            direction.push(pushed[-1], now_s)
    direction.configure(LinkSettings(rate_mbit=10), now_s)
    arrived += [chunk for _, chunk in drain(direction)]
    assert sorted(arrived, key=lambda chunk: chunk.item) == pushed
    for flow in "abc":
        assert [chunk.item for chunk in arrived if chunk.flow == flow] == [chunk.item for chunk in pushed if chunk.flow == flow]


@given(
    st.floats(0.1, 1000),
    st.floats(0, 100),
    st.lists(st.tuples(st.floats(0, 0.01), st.integers(0, 65536)), min_size=1, max_size=60),
)
def test_line_never_carries_more_than_its_rate(rate_mbit: float, rtt_ms: float, sends: list[tuple[float, int]]) -> None:
    settings = LinkSettings(rate_mbit, rtt_ms)
    direction: Line = Direction(settings, Random(0))
    now_s, arrivals = 0.0, []
    for pause_s, size in sends:
        now_s += pause_s
        arrivals += drain(direction, now_s)
        direction.push(chunk(size), now_s)
    carried = 0
    for when_s, arrived in arrivals + drain(direction):
        carried += arrived.size
        assert carried <= (when_s - settings.one_way_s) * settings.bytes_per_s + 1e-3
