import asyncio
from pathlib import Path

import pytest

from gateway.workers import FIRST_PAUSE_S, LASTED_S, LONGEST_PAUSE_S, Shared, WorkerCrew, next_pause_s, worker_environment
from pdd.rpc.errors import StartupError

SHARED = Shared("127.0.0.1:8000", "127.0.0.1:50050", Path("/tmp/metrics"))


def test_each_worker_is_an_instance_of_its_own_on_the_same_ports() -> None:
    own = {"PATH": "/bin", "PDD_INSTANCE_ID": "gw", "PDD_HTTP": "127.0.0.1:0", "PDD_WORKERS": "2", "PDD_PIPELINE": "relay"}
    first, second = (worker_environment(own, "gw", number, SHARED) for number in range(2))
    assert (first["PDD_INSTANCE_ID"], second["PDD_INSTANCE_ID"]) == ("gw-0", "gw-1")
    for environment in (first, second):
        assert environment["PATH"] == "/bin"
        assert environment["PDD_PIPELINE"] == "relay"
        assert environment["PDD_HTTP"] == "127.0.0.1:8000"
        assert environment["PDD_LISTEN"] == "127.0.0.1:50050"
        assert environment["PROMETHEUS_MULTIPROC_DIR"] == "/tmp/metrics"


def test_a_worker_that_does_not_last_waits_longer_each_time_up_to_a_bound() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause_s(pauses[-1], lived_s=1.0))
    assert pauses[1:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_worker_that_has_lasted_is_back_soon() -> None:
    assert next_pause_s(LONGEST_PAUSE_S, LASTED_S) == FIRST_PAUSE_S


async def test_a_machine_without_a_process_to_give_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_process(*_arguments: object, **_options: object) -> asyncio.subprocess.Process:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr("gateway.workers.start_module", no_process)
    with pytest.raises(StartupError, match=r"gw-0 could not be started .no more processes. before it served"):
        await WorkerCrew("gw", SHARED, {}).keep(0)
