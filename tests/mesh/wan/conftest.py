from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.mesh.wan.peers import HOST, Connect, connecting
from wan.link import LinkSettings
from wan.relay import Relay


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """A relay over a line without limits; tests change it as they need."""
    async with Relay(LinkSettings(), HOST, Random(1)) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connecting() as opened:
        yield opened
