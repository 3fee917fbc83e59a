"""The metrics of a gateway's workers as one: whoever of them is asked answers for all.

Used by `gateway.__main__` in a worker. Each keeps its values in files of its own, in a folder that all share, and reads all of
them when it is scraped. The files are named by the worker's number, not its process: one that is started again counts on from
where the one before it was lost. Its parent makes and removes the folder, and with a worker's death its gauges (`forget_gauges`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

# The variable by which prometheus-client learns that it is one of several. It has to be set when the process starts.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
WRITE_DOWN_S = 1.0  # by which a scrape of another worker may be behind on what is counted with every token


class MergedRegistry(CollectorRegistry):
    """What one worker's metrics are registered in. Collecting it gives those of all workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._everybody = MultiProcessCollector(None, str(folder))

    def write_down(self) -> None:
        """Have this worker's own values in its files, also those that are written only when they are collected."""
        for _metric in super().collect():
            pass

    def collect(self) -> Iterable[Metric]:
        self.write_down()
        found: Iterable[Metric] = self._everybody.collect()
        return found


@asynccontextmanager
async def merged_registry(number: int, folder: Path) -> AsyncIterator[MergedRegistry]:
    """For the metrics of worker `number`, which are made inside; kept up to date for the others' scrapes until left."""
    values.ValueClass = values.MultiProcessValue(lambda: number)
    registry = MergedRegistry(folder)
    writing = asyncio.create_task(_keep_writing(registry), name="metrics of a worker")
    try:
        yield registry
    finally:
        writing.cancel()
        registry.write_down()


def forget_gauges(number: int, folder: Path) -> None:
    """The worker is dead: what it was doing counts no more, what it has done still does."""
    mark_process_dead(number, str(folder))


async def _keep_writing(registry: MergedRegistry) -> None:
    while True:
        await asyncio.sleep(WRITE_DOWN_S)
        registry.write_down()
