from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from pdd.catalog.embedded import embedded_valkey


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def valkey_url() -> AsyncIterator[str]:
    """One server for all tests of a module; each test has to bring it to a known state."""
    async with embedded_valkey() as url:
        yield url
