"""`make load`, made short: locust, the mesh and its gateway's counters as real processes."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

pytestmark = pytest.mark.processes

DEADLINE_S = 100.0  # it takes a quarter of that on an idle machine
TRACE = "tests/fixtures/mooncake/conversation_slice.jsonl"


async def smoke(*arguments: str) -> tuple[int, str]:
    """The exit code and all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.smoke", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_load_over_both_apis_is_counted_alike_by_locust_and_by_the_gateway() -> None:
    code, output = await smoke("--run-time", "8s", "--users", "6", "--cancel-share", "0.2")
    assert code == 0, output
    table = {line.split("  ")[0]: line.split() for line in output.splitlines() if re.match(r"\w+ (http|grpc) |all ", line)}
    assert {"chat http", "chat grpc", "agents http", "documents http"} <= set(table), output
    answers, errors, cancelled = (int(cell) for cell in table["all"][1:4])
    assert answers > 0
    assert errors == 0
    assert cancelled > 0
    assert re.search(r"^pipelines: .*singular \d+% \(\d+\)", output, re.MULTILINE), output
    assert re.search(r"^output tokens +\d+ +\d+ *$", output, re.MULTILINE), output


async def test_a_trace_is_replayed_by_as_many_users_as_it_takes() -> None:
    code, output = await smoke("--trace", TRACE, "--trace-scale", "0.015625", "--run-time", "8s")
    assert code == 0, output
    assert re.search(r"^trace http +\d+ +0 +0 ", output, re.MULTILINE), output
    assert re.search(r"Shape test updating to [1-9]\d+ users", output), output
