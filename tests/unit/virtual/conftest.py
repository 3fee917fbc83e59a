"""Async tests of this folder run in virtual time, guarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from virtual.clock import VirtualLoop
from virtual.guards import guarded
from virtual.network import Network


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def loop() -> AsyncIterator[VirtualLoop]:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    with guarded(running.forbid):
        yield running
    assert running.forbidden == []


@pytest.fixture
async def network(loop: VirtualLoop) -> Network:
    return Network(seed=1)
