"""Two workers' metrics in one process: what tells them apart is their number."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, values

from gateway.merged import FOLDER_VARIABLE, MergedRegistry, forget_gauges, merged_registry
from gateway.tally import CounterTally, HistogramTally

ENDS = (0.01, 0.1)


class Metrics:
    """One of each kind that the gateway has."""

    def __init__(self, registry: MergedRegistry) -> None:
        self.registry = registry
        self.requests = Counter("requests", "Requests", ["status"], registry=registry)
        self.running = Gauge("running", "Requests running", registry=registry, multiprocess_mode="livesum")
        self.gaps = HistogramTally("gap_seconds", "Gaps", ENDS)
        self.tokens = CounterTally("tokens", "Tokens", "source")
        registry.register(self.gaps)
        registry.register(self.tokens)

    def read(self, name: str, **labels: str) -> float | None:
        """As a scrape of this worker has it."""
        return self.registry.get_sample_value(name, labels)


Start = Callable[[int], AbstractAsyncContextManager[MergedRegistry]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)  # put back at the end
    return partial(merged_registry, folder=tmp_path)


async def test_a_scrape_of_any_worker_has_what_all_of_them_counted(start: Start) -> None:
    async with AsyncExitStack() as stack:
        workers = [Metrics(await stack.enter_async_context(start(number))) for number in range(2)]
        for worker, count in zip(workers, (3, 4), strict=True):
            worker.requests.labels("200").inc(count)
            worker.running.inc(count)
            worker.tokens.add("main-0", count)
            worker.gaps.observe(0.05)
            worker.gaps.observe(float(count))
            worker.registry.write_down()
        for worker in workers:
            assert worker.read("requests_total", status="200") == 7
            assert worker.read("running") == 7
            assert worker.read("tokens_total", source="main-0") == 7
            assert [worker.read("gap_seconds_bucket", le=end) for end in ("0.01", "0.1", "+Inf")] == [0, 2, 4]
            assert (worker.read("gap_seconds_count"), worker.read("gap_seconds_sum")) == (4, 7.1)


async def test_what_a_worker_adds_up_is_in_its_own_scrape_at_once(start: Start) -> None:
    async with start(0) as registry:
        worker = Metrics(registry)
        worker.tokens.add("relay-0", 2)
        assert worker.read("tokens_total", source="relay-0") == 2
        assert worker.read("tokens_total", source="relay-0") == 2  # and not once more


async def test_the_dead_keep_what_they_counted_and_not_what_they_were_doing(start: Start, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        dead, living = [Metrics(await stack.enter_async_context(start(number))) for number in range(2)]
        for worker in (dead, living):
            worker.requests.labels("200").inc()
            worker.running.inc()
        forget_gauges(0, tmp_path)
        assert living.read("requests_total", status="200") == 2
        assert living.read("running") == 1


async def test_a_worker_that_is_started_again_counts_on(start: Start, tmp_path: Path) -> None:
    for life in (1, 2):
        async with start(0) as registry:
            worker = Metrics(registry)
            worker.requests.labels("200").inc()
            worker.tokens.add("main-0", 5)
            worker.gaps.observe(0.001)
            worker.running.inc()
            assert worker.read("requests_total", status="200") == life
            assert worker.read("tokens_total", source="main-0") == 5 * life
            assert worker.read("gap_seconds_count") == life
            assert worker.read("running") == 1
        forget_gauges(0, tmp_path)
    assert os.listdir(tmp_path).count("counter_0.db") == 1


async def test_what_was_added_last_is_written_when_a_worker_ends(start: Start) -> None:
    async with start(0) as registry:
        Metrics(registry).tokens.add("main-0", 5)
    async with start(1) as registry:
        assert Metrics(registry).read("tokens_total", source="main-0") == 5
