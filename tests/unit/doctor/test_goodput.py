from __future__ import annotations

import pytest

from pdd.doctor.goodput import goodput

SLOT_US = 50_000


def test_an_even_stream_has_its_rate() -> None:
    assert goodput(SLOT_US, [50_000] * 20).mbit == pytest.approx(8.0)


def test_the_time_in_which_a_stream_opens_its_window_does_not_count() -> None:
    assert goodput(SLOT_US, [0, 0, 1_000, 2_000, 5_000, 10_000] + [50_000] * 10).mbit == pytest.approx(8.0)


def test_a_last_slot_that_was_cut_short_does_not_count() -> None:
    assert goodput(SLOT_US, [50_000, 50_000, 10]).mbit == pytest.approx(8.0)


def test_a_probe_within_one_slot_has_a_rate() -> None:
    assert goodput(SLOT_US, [50_000]).mbit == pytest.approx(8.0)


def test_nothing_is_a_rate_of_nothing() -> None:
    assert goodput(SLOT_US, []).bytes_per_s == 0
    assert goodput(SLOT_US, []).arrived_bytes == 0
