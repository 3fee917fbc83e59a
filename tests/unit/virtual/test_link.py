import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtual.link import QUANTUM_BYTES, Direction, Flow
from wan.link import LinkSettings, Outage

MEBIBYTE = 1 << 20
RATE = 1e6  # bytes a second
RATED = LinkSettings(rate_mbit=8.0, rtt_ms=40.0)
ONE_WAY_S = 0.02


def direction(settings: LinkSettings, seed: int = 1) -> Direction[str]:
    return Direction(settings, Random(seed))


def run_dry(model: Direction[str], until_s: float = math.inf) -> list[tuple[str, float]]:
    """Everything that arrives, and when."""
    arrivals: list[tuple[str, float]] = []
    while (next_s := model.next_s()) is not None and next_s <= until_s:
        arrivals += [(item, next_s) for item in model.advance(next_s)]
    return arrivals


def arrivals_of(model: Direction[str]) -> dict[str, float]:
    """The same by name, in order of arrival."""
    return dict(run_dry(model))


def flows(count: int) -> list[Flow[str]]:
    return [Flow(f"connection {number}") for number in range(count)]


def test_without_limits_a_message_arrives_at_once() -> None:
    model = direction(LinkSettings())
    model.offer(Flow("c"), "m", MEBIBYTE, 5.0)
    assert arrivals_of(model) == {"m": 5.0}


def test_a_message_takes_its_time_on_the_line_and_on_its_way() -> None:
    model = direction(RATED)
    model.offer(Flow("c"), "m", 500_000, 1.0)
    assert arrivals_of(model) == pytest.approx({"m": 1.0 + 0.5 + ONE_WAY_S})


def test_a_link_has_nothing_to_do_before_a_message_arrives() -> None:
    model = direction(RATED)
    model.offer(Flow("c"), "m", 500_000, 1.0)
    assert model.next_s() == pytest.approx(1.0 + 0.5 + ONE_WAY_S)


def test_messages_of_a_call_queue_behind_each_other() -> None:
    model, (flow,) = direction(RATED), flows(1)
    for name in "abc":
        model.offer(flow, name, 100_000, 0.0)
    assert arrivals_of(model) == pytest.approx({name: 0.1 * place + ONE_WAY_S for place, name in enumerate("abc", 1)})


def test_a_token_does_not_wait_behind_the_megabytes_of_its_neighbours() -> None:
    model, (token, *bulk) = direction(RATED), flows(5)
    for flow in bulk:
        for _ in range(4):
            model.offer(flow, "bulk", MEBIBYTE, 0.0)
    model.offer(token, "token", 100, 0.5)
    arrived_s = next(at_s for item, at_s in run_dry(model) if item == "token")
    # What is on the line, and a turn of each of the others.
    assert arrived_s <= 0.5 + 5 * QUANTUM_BYTES / RATE + 100 / RATE + ONE_WAY_S


def test_a_call_that_is_alone_is_cut_when_another_comes_up() -> None:
    model, (bulk, token) = direction(RATED), flows(2)
    model.offer(bulk, "bulk", MEBIBYTE, 0.0)
    model.offer(token, "token", 100, 0.1)
    on_line_s = math.ceil(0.1 * RATE / QUANTUM_BYTES) * QUANTUM_BYTES / RATE
    assert arrivals_of(model) == pytest.approx(
        {"token": on_line_s + 100 / RATE + ONE_WAY_S, "bulk": (MEBIBYTE + 100) / RATE + ONE_WAY_S}
    )


def test_small_messages_of_a_call_share_a_turn() -> None:
    model, (bulk, tokens) = direction(RATED), flows(2)
    model.offer(bulk, "bulk", MEBIBYTE, 0.0)
    for name in "abc":
        model.offer(tokens, name, 1000, 0.0)
    arrivals = arrivals_of(model)
    assert list(arrivals) == ["a", "b", "c", "bulk"]
    assert arrivals["c"] == pytest.approx((QUANTUM_BYTES + 3000) / RATE + ONE_WAY_S)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300_000), st.floats(0, 1)), min_size=1, max_size=40))
def test_messages_keep_the_order_of_their_call_and_the_line_is_never_idle_while_one_waits(
    offers: list[tuple[int, int, float]],
) -> None:
    model, calls = direction(RATED), flows(4)
    busy_until_s = 0.0
    expected: dict[int, list[str]] = {}
    arrivals: list[tuple[str, float]] = []
    for number, (call, size, at_s) in enumerate(sorted(offers, key=lambda offer: offer[2])):
        while (next_s := model.next_s()) is not None and next_s < at_s:
            arrivals += [(item, next_s) for item in model.advance(next_s)]
        model.offer(calls[call], f"{call} {number}", size, at_s)
        expected.setdefault(call, []).append(f"{call} {number}")
        busy_until_s = max(busy_until_s, at_s) + size / RATE
    arrivals += run_dry(model)
    assert arrivals[-1][1] == pytest.approx(busy_until_s + ONE_WAY_S)
    for call, names in expected.items():
        assert [item for item, _ in arrivals if item.startswith(f"{call} ")] == names


@given(st.integers(1, 8), st.floats(0.001, 3), st.integers(1, 1000))
def test_a_small_message_waits_for_no_more_than_a_turn_of_each_neighbour(neighbours: int, at_s: float, size: int) -> None:
    model, (token, *bulk) = direction(RATED), flows(neighbours + 1)
    for flow in bulk:
        model.offer(flow, "bulk", MEBIBYTE, 0.0)
    run_dry(model, at_s)
    model.offer(token, "token", size, at_s)
    arrived_s = next(at_s for item, at_s in run_dry(model) if item == "token")
    assert arrived_s <= at_s + ((neighbours + 1) * QUANTUM_BYTES + size) / RATE + ONE_WAY_S + 1e-9


def test_discarded_messages_make_room_and_those_on_their_way_arrive() -> None:
    model, (one, other) = direction(RATED), flows(2)
    model.offer(one, "gone ahead", 1000, 0.0)
    model.offer(one, "discarded", MEBIBYTE, 0.0)
    model.offer(other, "next", 1000, 0.005)
    model.discard(one, 0.01)
    assert arrivals_of(model) == pytest.approx({"gone ahead": 0.001 + ONE_WAY_S, "next": 0.01 + 0.001 + ONE_WAY_S})


def test_discarding_a_call_without_messages_does_nothing() -> None:
    model, (one, other) = direction(RATED), flows(2)
    model.offer(one, "m", 1000, 0.0)
    model.discard(other, 0.0)
    assert arrivals_of(model) == pytest.approx({"m": 0.001 + ONE_WAY_S})


def test_a_new_rate_holds_for_what_is_left() -> None:
    model, (flow,) = direction(RATED), flows(1)
    model.offer(flow, "m", 1_000_000, 0.0)
    model.configure(replace(RATED, rate_mbit=16.0), 0.5)
    assert arrivals_of(model) == pytest.approx({"m": 0.5 + 0.25 + ONE_WAY_S})


def test_what_is_on_its_way_is_not_hurried() -> None:
    model, (flow,) = direction(RATED), flows(1)
    model.offer(flow, "m", 1000, 0.0)
    model.advance(0.001)
    model.configure(replace(RATED, rtt_ms=0.0), 0.002)
    assert arrivals_of(model) == pytest.approx({"m": 0.001 + ONE_WAY_S})


def test_a_black_hole_holds_everything_and_lets_it_go_on_when_it_ends() -> None:
    model, (one, other) = direction(RATED), flows(2)
    model.offer(one, "on its way", 1000, 0.0)
    model.offer(one, "half sent", 100_000, 0.0)
    model.configure(replace(RATED, outage=Outage.BLACK_HOLE), 0.011)
    model.offer(other, "sent into it", 1000, 1.0)
    assert model.next_s() is None
    assert model.advance(50.0) == []
    model.configure(RATED, 100.0)
    assert model.advance(100.0) == ["on its way"]
    arrivals = arrivals_of(model)
    assert arrivals["half sent"] == pytest.approx(100.0 + 0.09 + 0.001 + ONE_WAY_S, abs=0.002)
    assert arrivals["sent into it"] <= 100.0 + (QUANTUM_BYTES + 1000) / RATE + ONE_WAY_S


def test_jitter_delays_within_its_bound_and_nothing_overtakes() -> None:
    model = direction(replace(RATED, rate_mbit=None, jitter_ms=10.0))
    for number in range(100):
        model.offer(Flow("c"), str(number), 100, number * 0.001)
    arrivals = run_dry(model)
    assert [item for item, _ in arrivals] == [str(number) for number in range(100)]
    late_s = [at_s - number * 0.001 - ONE_WAY_S for number, (_, at_s) in enumerate(arrivals)]
    assert 0 <= min(late_s) < max(late_s) <= 0.01 + 1e-9


def test_loss_stalls_the_connection_for_a_round_trip_and_no_other() -> None:
    lossy, clean = Flow[str]("lossy"), Flow[str]("clean")
    model = direction(LinkSettings(rtt_ms=40.0, loss=0.5), seed=3)
    for number in range(10):
        model.offer(lossy, f"lossy {number}", 100, 0.0)
    model.configure(LinkSettings(rtt_ms=40.0), 0.0)
    model.offer(lossy, "lossy last", 100, 0.0)
    model.offer(clean, "clean", 100, 0.0)
    arrivals = run_dry(model)
    assert dict(arrivals)["clean"] == pytest.approx(ONE_WAY_S)
    assert dict(arrivals)["lossy last"] == pytest.approx(ONE_WAY_S + 0.04)
    order = [item for item, _ in arrivals if item.startswith("lossy")]
    assert order == [*(f"lossy {number}" for number in range(10)), "lossy last"]
