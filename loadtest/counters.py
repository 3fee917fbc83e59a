"""The gateway's Prometheus counters beside locust's counts. Pure, but for `scrape`.

Called by `report` at the start and the end of a test. What a client cancels is counted by both sides at times of their own: when
the client leaves, the gateway may have written the last byte, or not have read the request. So answers and errors have to be
equal; what was cancelled is told apart, and bounds the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from loadtest.http_api import get


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one side; of the gateway, the routes that locust uses."""

    served: Mapping[str, int]  # by route
    failed: Mapping[str, int]
    cancelled: Mapping[str, int]
    pipelines: Mapping[str, int]  # planned; locust's of whole answers
    first_tokens: int
    tokens: int

    def since(self, before: Counts) -> Counts:
        return Counts(
            _less(self.served, before.served),
            _less(self.failed, before.failed),
            _less(self.cancelled, before.cancelled),
            _less(self.pipelines, before.pipelines),
            self.first_tokens - before.first_tokens,
            self.tokens - before.tokens,
        )


def scrape(url: str, routes: Sequence[str]) -> Counts:
    """Raises OSError and HTTPException."""
    return parse(get(url, "/metrics").decode(), routes)


def parse(text: str, routes: Sequence[str]) -> Counts:
    """A gateway's `/metrics`."""
    served, failed, cancelled = (dict.fromkeys(routes, 0) for _ in range(3))
    by_outcome = {"ok": served, "error": failed, "cancelled": cancelled}
    pipelines: dict[str, int] = {}
    first_tokens = tokens = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels, value = sample.labels, int(sample.value)
            match sample.name:
                case "pdd_requests_total" if labels["route"] in served:
                    by_outcome[labels["outcome"]][labels["route"]] += value
                case "pdd_plans_total":
                    pipelines[labels["pipeline"]] = pipelines.get(labels["pipeline"], 0) + value
                case "pdd_time_to_first_token_seconds_count":
                    first_tokens += value
                case "pdd_output_tokens_total":
                    tokens += value
    return Counts(served, failed, cancelled, pipelines, first_tokens, tokens)


@dataclass(frozen=True, slots=True)
class Compared:
    what: str
    locust: int
    gateway: int
    least: int  # that the gateway may have, by what was cancelled or failed
    most: int

    @property
    def agrees(self) -> bool:
        return self.least <= self.gateway <= self.most


def compare(locust: Counts, gateway: Counts) -> list[Compared]:
    """`gateway` is of the same time. Errors of requests that never reached it are a difference."""
    lines: list[Compared] = []
    for route in sorted(locust.served):
        left = locust.cancelled.get(route, 0)
        served, found = locust.served[route], gateway.served.get(route, 0)
        lines.append(Compared(f"answers {route}", served, found, served, served + left))
        failed = locust.failed.get(route, 0)
        lines.append(Compared(f"errors {route}", failed, gateway.failed.get(route, 0), failed, failed))
        lines.append(Compared(f"cancelled {route}", left, gateway.cancelled.get(route, 0), 0, left - max(0, found - served)))
    unfinished = sum(locust.cancelled.values()) + sum(locust.failed.values())
    for pipeline in sorted({*locust.pipelines, *gateway.pipelines}):
        told = locust.pipelines.get(pipeline, 0)
        lines.append(Compared(f"pipeline {pipeline}", told, gateway.pipelines.get(pipeline, 0), told, told + unfinished))
    first = locust.first_tokens
    lines.append(Compared("first tokens", first, gateway.first_tokens, first, first + unfinished))
    most = locust.tokens if not unfinished else max(locust.tokens, gateway.tokens)
    lines.append(Compared("output tokens", locust.tokens, gateway.tokens, locust.tokens, most))
    return lines


def _less(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {key: value - before.get(key, 0) for key, value in now.items()}
