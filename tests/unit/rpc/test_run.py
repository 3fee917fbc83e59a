"""`run_service` ends the process, so it is watched as one."""

import re
import signal

import pytest

from tests.support.process import running_module

MODULE = "tests.unit.rpc.program"


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        ("startup_error", 1, "test: the disk is full; empty it\n"),
        ("grouped_startup_error", 1, "test: the disk is full; empty it\n"),
        ("incompatible", 1, "test: main main-1 can't join beside relay relay-0\n"),
        ("address_in_use", 1, "test: [Errno 98] Address already in use\n"),
        ("bad_settings", 2, "test: PDD_SLOTS: Input should be a valid integer, unable to parse string as an integer\n"),
        ("bad_log_level", 2, "test: log level 'loud': use one of debug, info, warning, error, critical\n"),
    ],
)
async def test_known_error_is_one_line_and_an_exit_code(program: str, code: int, line: str) -> None:
    async with running_module(MODULE, {"PROGRAM": program}) as process:
        assert await process.end() == (code, line)


async def test_unknown_error_shows_its_traceback() -> None:
    async with running_module(MODULE, {"PROGRAM": "bug"}) as process:
        code, said = await process.end()
    assert code == 1
    assert re.search(r"Traceback(.|\n)*ZeroDivisionError", said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_service_in_good_order(number: signal.Signals) -> None:
    async with running_module(MODULE, {"PROGRAM": "until_stopped"}) as process:
        await process.until("started")
        process.signal(number)
        code, said = await process.end()
    assert code == 0
    assert "stopped in good order" in said


async def test_second_signal_cancels_a_service_that_does_not_stop() -> None:
    async with running_module(MODULE, {"PROGRAM": "deaf"}) as process:
        await process.until("started")
        process.signal(signal.SIGTERM)
        await process.until("heard")
        process.signal(signal.SIGTERM)
        code, said = await process.end()
    assert code == 1
    assert "cancelled" in said
    assert said.endswith("test: cancelled by a second signal\n")
