"""`pdd up` and `pdd ask` with simulated engines: the whole mesh as real processes."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest

from tests.eventually import eventually
from tests.processes.program import ANY_PORTS, all_gone, children_of, ended, started

pytestmark = pytest.mark.processes

UP = ("up", "--engine", "sim", *ANY_PORTS)
# Long enough that its KV takes longer over this link than the relay needs to begin.
QUESTION = "word " * 400
SLOW_LINK = ("--rate", "100", "--rtt", "40")


async def test_ask_shows_an_answer_by_prefill_relay_and_main_and_its_timeline() -> None:
    async with started(*UP, *SLOW_LINK, "--pipeline", "relay") as up:
        await up.until("ready. ")
        code, output = await ended("ask", "--url", up.grpc_address, "--max-tokens", "300", "--min-tokens", "300", QUESTION)
        assert code == 0, output
        made = {source: int(count) for source, count in re.findall(r"(\S+): (\d+) tokens?\b", output)}
        assert list(made) == ["prefill-0", "relay-0", "main-0"]
        assert sum(made.values()) == 300
        assert re.findall(r"\[(\w+-\d)\]", output) == ["prefill-0", "relay-0", "main-0"]
        for stage in ("prefill", "transfer.relay", "transfer.main", "relay", "extend", "switch gap", "main"):
            assert re.search(rf"^{stage}\b", output, re.MULTILINE), output


async def test_sigterm_stops_everything_in_good_order() -> None:
    async with started(*UP, "--relays", "2") as up:
        await up.until("ready. ")
        processes = children_of(up.process.pid)
        assert len(processes) == 7  # registry, link, prefill, two relays, main, gateway
        up.process.send_signal(signal.SIGTERM)
        assert await up.end() == 0
        assert up.output.rstrip().endswith("stopped")
        assert all_gone(processes)()


async def test_everything_dies_with_a_pdd_up_that_is_killed() -> None:
    async with started(*UP) as up:
        await up.until("ready. ")
        processes = children_of(up.process.pid)
        up.process.kill()
        await up.process.wait()
        await eventually(all_gone(processes))


async def test_a_process_that_dies_is_named_and_the_mesh_goes_on_until_the_gateway_dies() -> None:
    async with started(*UP) as up:
        await up.until("ready. ")
        processes = children_of(up.process.pid)
        os.kill(up.pid_of("relay-0"), signal.SIGKILL)
        assert "relay-0 was killed by SIGKILL" in await up.until("relay-0 was")
        os.kill(up.pid_of("gateway"), signal.SIGKILL)
        await up.until("gateway was killed by SIGKILL")
        assert await up.end() == 1
        assert all_gone(processes)()


async def test_a_process_that_cannot_start_ends_the_mesh_with_the_end_of_its_log() -> None:
    code, output = await ended(*UP, environment={"PDD_SLOTS": "none"})
    assert code == 1
    assert re.search(r"pdd: (prefill|relay|main)-0 ended with exit code \d during start-up", output)
    assert "PDD_SLOTS" in output
    assert "Traceback" not in output


async def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, output = await ended("up", "--engine", "sim", *ANY_PORTS[2:], "--http", address)
    assert code == 1
    assert f"pdd: can't listen on {address}" in output
    assert "started" not in output


async def test_demo_leaves_nothing_behind() -> None:
    code, output = await ended("demo", "--engine", "sim", "--max-tokens", "50", *SLOW_LINK)
    assert code == 0, output
    assert "engine sim, pipeline relay" in output
    assert "50 output tokens" in output
    assert "no process of the mesh is left" in output
    pids = [int(pid) for pid in re.findall(r"\(pid (\d+)\)", output)]
    assert len(pids) == 5
    assert all_gone(pids)()
