"""What the allocator does is seen from outside only: in a process of its own, by its size."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import pytest

from tests.support.process import running_module

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


async def kept_mib(environment: Mapping[str, str]) -> int:
    """Of 64 MiB that four threads have taken and freed one after the other."""
    async with running_module("tests.unit.rpc.memory_program", environment) as process:
        code, said = await process.end()
    assert code == 0, said
    return int(said)


async def test_freed_memory_stays_and_serves_every_thread() -> None:
    assert 60 <= await kept_mib({"PROGRAM": "keeps"}) <= 80


async def test_what_the_environment_says_counts_more() -> None:
    assert await kept_mib({"PROGRAM": "keeps", "MALLOC_MMAP_THRESHOLD_": "65536"}) < 10


async def test_without_it_memory_goes_back() -> None:
    assert await kept_mib({"PROGRAM": "default"}) < 10
