"""What is put into locust's own statistics, from where its web page, its CSV files and its workers' reports take it.

Called by the users with each answer. A whole answer is a request of locust's, of type `answer`. The other types stand beside it,
and are not in the row "Aggregated", which counts answers alone:

    TTFT, token gap, handoff gap    ms
    tokens/s                        of one answer behind its first token: a rate, though locust heads its columns with ms
    pipeline                        by name; as many as were planned so, ms to the end of the answer
    cancelled                       ms until the client left

The column of sizes, which locust calls bytes, holds tokens where it holds anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.answer import Reading

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.stats import RequestStats

ANSWER = "answer"
TTFT = "TTFT"
TOKEN_GAP = "token gap"
HANDOFF_GAP = "handoff gap"
TOKEN_RATE = "tokens/s"
PIPELINE = "pipeline"
CANCELLED = "cancelled"

_FINE_BELOW_MS = 10.0


class Measures:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def completed(self, name: str, reading: Reading) -> None:
        record(self._environment.stats, name, reading)
        self._request(name, reading, None)

    def failed(self, name: str, reading: Reading, error: Exception) -> None:
        self._request(name, reading, error)

    def cancelled(self, name: str, reading: Reading, now_s: float) -> None:
        """Neither an answer nor an error."""
        _log(self._environment.stats, CANCELLED, name, now_s - reading.started_s, reading.tokens)

    def _request(self, name: str, reading: Reading, error: Exception | None) -> None:
        self._environment.events.request.fire(
            request_type=ANSWER,
            name=name,
            response_time=reading.duration_s * 1000,
            response_length=reading.tokens,
            exception=error,
            context={},
        )


def record(stats: RequestStats, name: str, reading: Reading) -> None:
    """All of a whole answer but the request itself."""
    if reading.ttft_s is not None:
        _log(stats, TTFT, name, reading.ttft_s)
    for gap_s in reading.gaps_s:
        _log(stats, TOKEN_GAP, name, gap_s)
    if reading.handoff_gap_s is not None:
        _log(stats, HANDOFF_GAP, name, reading.handoff_gap_s)
    if reading.tokens_per_s is not None:
        _log(stats, TOKEN_RATE, name, reading.tokens_per_s / 1000)
    _log(stats, PIPELINE, reading.pipeline or "not told", reading.duration_s, reading.tokens)


def bucket_ms(response_time: float) -> float:
    """locust's rounding to two digits, which under 10 ms would leave one."""
    if response_time < _FINE_BELOW_MS:
        return round(response_time, 1)
    digits = len(str(int(response_time))) - 2
    return round(response_time, -digits)


def _log(stats: RequestStats, kind: str, name: str, seconds: float, tokens: int = 0) -> None:
    # Not through locust's events: they would count each of these as one request more.
    stats.entries[(name, kind)].log(seconds * 1000, tokens)  # type: ignore[arg-type]  # locust's events bring floats too
