import pytest

from gateway.routing.prefill_rates import PrefillRates


def test_a_prefill_without_a_first_token_has_no_rate() -> None:
    rates = PrefillRates()
    rates.learn("p", 0, 0.0)
    assert rates.rate("p") == 0.0


def test_a_long_prompt_says_more_than_a_short_one() -> None:
    rates = PrefillRates()
    rates.learn("p", 10_000, 1.0)
    rates.learn("p", 10, 0.1)
    assert rates.rate("p") == pytest.approx(7502.5 / 0.775)
    rates.forget("p")
    assert rates.rate("p") == 0.0
