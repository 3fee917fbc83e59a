from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pdd.catalog.embedded import embedded_valkey


@pytest.fixture
async def redis_url() -> AsyncIterator[str]:
    async with embedded_valkey() as url:
        yield url
