"""When a request that failed is asked again. Decisions only: the time is an argument, and chance is passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd.client.errors import ClientError, Report, client_error

DEFAULT_TIMEOUT_S = 300.0
_LONGEST_TIMEOUT_S = 1e8  # three years; gRPC takes what is far longer, or infinite, for a time in the past


@dataclass(frozen=True, slots=True)
class Retry:
    """For requests that the mesh could not take, before their first token."""

    attempts: int = 4  # calls in all; 1 never asks again
    first_delay_s: float = 0.25  # the longest wait after the first failure; it doubles with each
    longest_delay_s: float = 5.0

    def delay_s(self, failed: int, draw: float, after_s: float = 0.0) -> float:
        """The wait after `failed` failures, 1 or more: `draw`, in [0, 1), of the longest, behind the gateway's own wish."""
        return after_s + draw * min(self.longest_delay_s, self.first_delay_s * (1 << min(failed - 1, 32)))


class Attempts:
    """The calls of one request under one deadline."""

    def __init__(self, address: str, retry: Retry, draw: Callable[[], float], timeout_s: float, now_s: float) -> None:
        self._address = address
        self._retry = retry
        self._draw = draw
        self._timeout_s = timeout_s  # of all of them together
        self._deadline_s = now_s + min(timeout_s, _LONGEST_TIMEOUT_S)
        self._failed = 0

    def left_s(self, now_s: float) -> float:
        """The time that a call has which begins now."""
        return max(0.0, self._deadline_s - now_s)

    def error(self, report: Report) -> ClientError:
        return client_error(report, self._address, self._timeout_s)

    def delay_s(self, report: Report, now_s: float) -> float:
        """The wait between the call that failed and the next. Raises ClientError where there is to be none."""
        self._failed += 1
        error = self.error(report)
        after_s = report.retry_after_s or 0.0
        if not error.retriable or after_s < 0 or self._failed >= self._retry.attempts:
            raise error
        delay_s = self._retry.delay_s(self._failed, self._draw(), after_s)
        if delay_s >= self.left_s(now_s):
            raise error
        return delay_s
