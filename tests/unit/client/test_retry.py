import math

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.client.errors import ClientError, Overloaded, Report, Unavailable, report_of
from pdd.client.retry import Attempts, Retry

AWAY = Report(grpc.StatusCode.UNAVAILABLE)
FULL = Report(grpc.StatusCode.RESOURCE_EXHAUSTED, code="overloaded")


def attempts(retry: Retry, timeout_s: float = 100.0, draw: float = 0.5) -> Attempts:
    return Attempts("gateway:1", retry, lambda: draw, timeout_s, 1000.0)


def wished(milliseconds: str) -> Report:
    trailing = (("x-pdd-code", "overloaded"), ("grpc-retry-pushback-ms", milliseconds))
    return report_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailing)


def test_the_longest_wait_doubles_up_to_a_bound() -> None:
    retry = Retry(first_delay_s=0.25, longest_delay_s=1.0)
    assert [retry.delay_s(failed, 1.0) for failed in (1, 2, 3, 4, 1000)] == [0.25, 0.5, 1.0, 1.0, 1.0]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_a_part_of_the_longest(failed: int, draw: float) -> None:
    retry = Retry()
    assert 0 <= retry.delay_s(failed, draw) <= retry.longest_delay_s


def test_a_request_is_sent_as_often_as_was_said_and_then_the_last_error_is_told() -> None:
    tried = attempts(Retry(attempts=3, first_delay_s=1.0))
    assert [tried.delay_s(AWAY, 1000.0), tried.delay_s(FULL, 1000.0)] == [0.5, 1.0]
    with pytest.raises(Unavailable):
        tried.delay_s(AWAY, 1000.0)


def test_one_attempt_is_never_repeated() -> None:
    with pytest.raises(Overloaded):
        attempts(Retry(attempts=1)).delay_s(FULL, 1000.0)


def test_the_gateways_own_wish_comes_before_the_wait() -> None:
    assert attempts(Retry(first_delay_s=1.0)).delay_s(wished("2000"), 1000.0) == 2.5


@pytest.mark.parametrize("milliseconds", ["-1", "soon", "", "²"])
def test_a_gateway_that_wishes_for_no_repeat_gets_none(milliseconds: str) -> None:
    with pytest.raises(Overloaded):
        attempts(Retry()).delay_s(wished(milliseconds), 1000.0)


def test_a_time_without_end_is_one_that_grpc_can_hold() -> None:
    assert 1e7 < attempts(Retry(), timeout_s=math.inf).left_s(1000.0) < 1e9


def test_a_wait_that_would_outlast_the_deadline_is_not_begun() -> None:
    tried = attempts(Retry(first_delay_s=1.0), timeout_s=10.0)
    assert tried.delay_s(AWAY, 1009.4) == 0.5
    with pytest.raises(Unavailable):
        tried.delay_s(AWAY, 1009.4)


def test_all_attempts_share_one_deadline() -> None:
    tried = attempts(Retry(), timeout_s=10.0)
    assert [tried.left_s(now_s) for now_s in (1000.0, 1004.0, 1011.0)] == [10.0, 6.0, 0.0]


@pytest.mark.parametrize(
    "status",
    [status for status in grpc.StatusCode if status not in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)],
    ids=lambda status: status.name,
)
def test_only_what_may_pass_is_asked_again(status: grpc.StatusCode) -> None:
    with pytest.raises(ClientError):
        attempts(Retry()).delay_s(Report(status), 1000.0)
