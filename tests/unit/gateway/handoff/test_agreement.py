from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.handoff.agreement import expected, sampled
from pdd.catalog.base import Role
from tests.unit.gateway.instances import registration


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_the_sample_has_its_share_wherever_one_begins_to_count(share: float, start: int) -> None:
    drawn = sum(sampled(number, share) for number in range(start, start + 500))
    assert drawn == pytest.approx(500 * share, abs=5)


def test_all_and_none() -> None:
    assert all(sampled(number, 1.0) for number in range(1000))
    assert not any(sampled(number, 0.0) for number in range(1000))


def test_only_equal_engines_must_agree() -> None:
    relay, main = registration(Role.RELAY), registration(Role.MAIN)
    assert expected([relay, main])
    for differing in ({"engine": "another"}, {"device_dtype": "bf16"}):
        assert not expected([relay, replace(main, layout=replace(main.layout, **differing))])  # type: ignore[arg-type]
