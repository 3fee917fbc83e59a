from __future__ import annotations

import pytest

from loadtest.answer import Ask, ClientLeft, Reading
from tests.unit.loadtest.readings import reading


def test_times_are_counted_from_the_asking_and_between_deliveries() -> None:
    found = reading((0.5, "prefill-0"), (0.75, "relay-0"), (1.0, "relay-0"))
    assert found.ttft_s == 0.5
    assert found.gaps_s == [0.25, 0.25]
    assert found.duration_s == 1.0
    assert found.tokens_per_s == 4.0
    assert found.pipeline == "relay"


def test_the_handoff_gap_is_the_one_at_the_last_change_of_instance() -> None:
    deliveries = (0.5, "prefill-0"), (0.6, "relay-0"), (0.7, "relay-0"), (1.5, "main-0"), (1.6, "main-0")
    found = reading(*deliveries, handed_over=True)
    assert found.handoff_gap_s == pytest.approx(0.8)


def test_without_a_handoff_there_is_no_gap_of_one() -> None:
    assert reading((0.5, "prefill-0"), (0.9, "main-0")).handoff_gap_s is None
    assert reading((0.5, ""), (0.9, ""), handed_over=True).handoff_gap_s is None


def test_an_answer_of_one_delivery_has_no_rate_and_one_of_none_no_first_token() -> None:
    assert reading((0.5, "")).tokens_per_s is None
    assert reading().ttft_s is None


def test_a_client_that_is_to_leave_does_so_with_the_token_that_it_waited_for() -> None:
    found = Reading(Ask((1,), max_tokens=9, seed=1, leave_after_tokens=2), 0.0)
    found.deliver("a", 1, 1.0)
    with pytest.raises(ClientLeft):
        found.deliver("b", 1, 2.0)
    assert found.tokens == 2
