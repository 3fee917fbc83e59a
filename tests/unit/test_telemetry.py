import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from pdd.telemetry import configure_logging, get_logger


@pytest.fixture(autouse=True)
def _configuration_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_record_is_a_json_line_on_stderr_marked_with_service_and_module(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "relay")
    get_logger("some.module").info("step done", tokens=3)
    captured = capsys.readouterr()
    record = json.loads(captured.err)
    assert captured.out == ""
    assert record | {"timestamp": ""} == {
        "event": "step done",
        "tokens": 3,
        "level": "info",
        "service": "relay",
        "module": "some.module",
        "timestamp": "",
    }


def test_logger_made_before_configuration_obeys_it(capsys: pytest.CaptureFixture[str]) -> None:
    early = get_logger("early")
    configure_logging("warning", "main")
    early.info("not shown")
    early.warning("shown")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["shown"]


def test_other_libraries_records_look_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "gateway")
    logging.getLogger("asyncio").error("task failed: %s", "because")
    record = json.loads(capsys.readouterr().err)
    assert (record["event"], record["service"], record["logger"]) == ("task failed: because", "gateway", "asyncio")


def test_exception_is_part_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "gateway")
    try:
        raise KeyError("lost")
    except KeyError:
        get_logger("x").exception("failed")
    assert "KeyError: 'lost'" in json.loads(capsys.readouterr().err)["exception"]


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure_logging("loud", "gateway")
