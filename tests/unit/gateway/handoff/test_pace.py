"""One request's measurements, and what is remembered of them."""

import pytest

from gateway.handoff.pace import Measured, Pace, PaceBook, PaceMeter

CPU = Pace(relay_interval_s=0.0095, extend_s=0.009, round_trip_s=0.04)


def test_meter_believes_its_prior_until_it_has_measured() -> None:
    meter = PaceMeter(CPU)
    meter.relay_tokens(30, now_s=5.0)  # a burst that had waited says nothing of the rate
    assert meter.pace == CPU
    meter.relay_tokens(2, now_s=5.1)
    meter.relay_tokens(2, now_s=5.2)
    assert meter.pace.relay_interval_s == pytest.approx(0.05)


def test_meter_takes_the_last_rounds_compute_and_the_shortest_trip() -> None:
    meter = PaceMeter(CPU)
    meter.extended(computed_tokens=50, compute_s=0.5, waited_s=0.6)
    meter.extended(computed_tokens=5, compute_s=0.1, waited_s=0.3)
    assert meter.pace.extend_s == pytest.approx(0.02)
    assert meter.pace.round_trip_s == pytest.approx(0.1)


def test_meter_charges_ids_with_what_they_add_to_mains_step() -> None:
    meter = PaceMeter(CPU)
    meter.main_step(0.025)
    meter.extended(computed_tokens=100, compute_s=0.045, waited_s=0.1)
    assert meter.pace.extend_s == pytest.approx(0.0002)
    assert meter.pace.main_step_s == 0.025
    meter.extended(computed_tokens=1, compute_s=0.02, waited_s=0.1)  # steps vary
    assert meter.pace.extend_s == 0.0


def test_meter_remembers_no_extend_beside_which_it_knew_no_step() -> None:
    meter = PaceMeter(CPU)
    meter.extended(computed_tokens=5, compute_s=0.025, waited_s=0.1)
    assert meter.pace.extend_s == pytest.approx(0.005)
    assert meter.measured.extended_ids == 0
    meter.main_step(0.02)
    meter.extended(computed_tokens=5, compute_s=0.025, waited_s=0.1)
    assert meter.measured.extended_ids == 5
    assert meter.measured.extending_s == pytest.approx(0.005)


def test_meter_remembers_no_interval_of_a_few_tokens() -> None:
    meter = PaceMeter(CPU)
    for number in range(8):
        meter.relay_tokens(1, now_s=number * 0.03)
    assert meter.measured == Measured()
    meter.relay_tokens(1, now_s=8 * 0.03)
    assert meter.measured.relay_interval_s == pytest.approx(0.03)


def test_book_believes_its_prior_then_mains_hello_then_what_was_measured() -> None:
    book = PaceBook(CPU)
    assert book.pace("relay-0", "main-0") == CPU
    assert book.pace("relay-0", "main-0", greeting_s=0.1).round_trip_s == 0.1
    book.learn("relay-0", "main-0", Measured(relay_interval_s=0.03, round_trip_s=0.2, extended_ids=10, extending_s=0.05))
    assert book.pace("relay-0", "main-0", greeting_s=0.1) == Pace(0.03, 0.005, 0.2)


def test_book_knows_a_relay_beside_any_main_and_a_main_beside_any_relay() -> None:
    book = PaceBook(CPU)
    book.learn("relay-0", "main-0", Measured(relay_interval_s=0.03, round_trip_s=0.2, extended_ids=10, extending_s=0.05))
    assert book.pace("relay-0", "main-1") == Pace(0.03, CPU.extend_s, CPU.round_trip_s)
    assert book.pace("relay-1", "main-0") == Pace(CPU.relay_interval_s, 0.005, 0.2)


def test_book_follows_a_change_and_is_not_thrown_by_one_request() -> None:
    book = PaceBook(CPU)
    for _ in range(30):
        book.learn("relay-0", "main-0", Measured(relay_interval_s=0.02))
    book.learn("relay-0", "main-0", Measured(relay_interval_s=0.10))
    assert book.pace("relay-0", "main-0").relay_interval_s == pytest.approx(0.04)
    for _ in range(30):
        book.learn("relay-0", "main-0", Measured(relay_interval_s=0.10))
    assert book.pace("relay-0", "main-0").relay_interval_s == pytest.approx(0.10, rel=0.01)


def test_book_weighs_extends_by_their_ids() -> None:
    book = PaceBook(CPU)
    for _ in range(30):
        book.learn("relay-0", "main-0", Measured(extended_ids=100, extending_s=0.1))
    book.learn("relay-0", "main-0", Measured(extended_ids=1, extending_s=0.02))  # a step's rounding
    assert book.pace("relay-0", "main-0").extend_s == pytest.approx(0.001, rel=0.1)


def test_book_learns_nothing_from_a_request_without_a_handoff() -> None:
    book = PaceBook(CPU)
    book.learn("relay-0", "main-0", Measured())
    assert book.pace("relay-0", "main-0") == CPU


def test_book_forgets_the_instances_longest_without_news() -> None:
    book = PaceBook(CPU)
    for number in range(1025):
        book.learn(f"relay-{number}", "main-0", Measured(relay_interval_s=1.0))
    assert book.pace("relay-0", "main-0").relay_interval_s == CPU.relay_interval_s
    assert book.pace("relay-1024", "main-0").relay_interval_s == 1.0
