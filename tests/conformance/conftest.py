"""Every test of this suite runs twice: over gRPC in real time, and over the network in memory in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from tests.conformance.stacks import Log, Site, stack_of_this_loop
from virtual.clock import VirtualLoop
from virtual.guards import guarded


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"grpc": asyncio.new_event_loop, "virtual": VirtualLoop}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site(stack_of_this_loop()) as opened:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            yield opened
            return
        with guarded(loop.forbid):
            yield opened
        assert loop.forbidden == []


@pytest.fixture
async def log() -> Log:
    return Log()
