"""What a test says at its end: the table, and the gateway's counters beside locust's.

Called by locust's events, through `locustfile`. Owns the counters' values at the test's start; they are compared at its end, once
every user has stopped. A gateway that others ask at the same time has counted more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from http.client import HTTPException

import gevent
from locust.env import Environment
from locust.stats import RequestStats, StatsEntry

from loadtest import grpc_api, http_api
from loadtest.counters import Compared, Counts, compare, scrape
from loadtest.measures import ANSWER, CANCELLED, PIPELINE, TTFT
from loadtest.options import Options
from loadtest.table import aligned, text

ROUTES = (http_api.CHAT_ROUTE, http_api.COMPLETIONS_ROUTE, grpc_api.ROUTE)
_SETTLE_S = 5.0  # for the gateway to hear of clients that left; its workers tell each other of their counts once a second
_POLL_S = 0.2


class Report:
    def __init__(self, environment: Environment, options: Options) -> None:
        self._environment = environment
        self._options = options
        self._before: Counts | None = None

    def started(self) -> None:
        self._before = self._scrape()

    def stopped(self) -> None:
        """Print it all, and say by locust's exit code where it is not as it should be."""
        self.tell()
        if self._options.check_counters and not self._counters_agree():
            self._environment.process_exit_code = 1
        sys.stdout.flush()

    def tell(self) -> None:
        """Print the table alone."""
        sys.stdout.write(f"\n{text(self._environment.stats)}\n")

    def _counters_agree(self) -> bool:
        lines = self._compared()
        if lines is None:
            sys.stdout.write(f"{self._options.host}/metrics could not be read: nothing to compare with\n")
            return False
        told = [(line.what, str(line.locust), str(line.gateway), "" if line.agrees else "differs") for line in lines]
        sys.stdout.write("\n".join(("", *aligned((("counted", "locust", "gateway", ""), *told)), "")))
        return all(line.agrees for line in lines)

    def _compared(self) -> list[Compared] | None:
        """Once they agree, or have had the time to."""
        own = counts(self._environment.stats)
        lines = None
        for _ in range(round(_SETTLE_S / _POLL_S)):
            now = self._scrape()
            if now is None or self._before is None:
                return None
            lines = compare(own, now.since(self._before))
            if all(line.agrees for line in lines):
                break
            gevent.sleep(_POLL_S)
        return lines

    def _scrape(self) -> Counts | None:
        try:
            return scrape(self._options.host, ROUTES)
        except (OSError, HTTPException):
            return None


def counts(stats: RequestStats) -> Counts:
    """locust's side."""

    def by_route(kind: str, number: Callable[[StatsEntry], int]) -> Mapping[str, int]:
        found = dict.fromkeys(ROUTES, 0)
        for (name, of), entry in stats.entries.items():
            if of == kind:
                found[route_of(name)] += number(entry)
        return found

    def of(kind: str) -> dict[str, StatsEntry]:
        return {name: entry for (name, other), entry in stats.entries.items() if other == kind}

    pipelines = of(PIPELINE)
    return Counts(
        served=by_route(ANSWER, lambda entry: entry.num_requests - entry.num_failures),
        failed=by_route(ANSWER, lambda entry: entry.num_failures),
        cancelled=by_route(CANCELLED, lambda entry: entry.num_requests),
        pipelines={name: entry.num_requests for name, entry in pipelines.items()},
        first_tokens=sum(entry.num_requests for entry in of(TTFT).values()),
        tokens=sum(entry.total_content_length for entry in pipelines.values()),
    )


def route_of(name: str) -> str:
    """Of the users of that name in the statistics."""
    kind, _, api = name.partition(" ")
    if api == "grpc":
        return grpc_api.ROUTE
    return http_api.CHAT_ROUTE if kind == "chat" else http_api.COMPLETIONS_ROUTE
