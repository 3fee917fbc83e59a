"""The `pdd` program as a person types it."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdd.cli.main import app
from pdd.cli.plan import EngineName, MeshOptions
from pdd.cli.up import describe


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"TERMINAL_WIDTH": "200", "NO_COLOR": "1"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


@pytest.mark.parametrize("command", [["up"], ["ask"], ["demo"], ["health"], ["model", "fetch"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    code, output = run(*command, "--help")
    assert code == 0
    assert "Usage: " in output


@pytest.mark.parametrize(
    "option",
    ["--engine", "--rtt", "--rate", "--relays", "--mains", "--prefills", "--pipeline", "--handoff", "--http", "--grpc"],
)
def test_up_has_the_options_of_a_mesh(option: str) -> None:
    assert option in run("up", "--help")[1]


def test_a_mesh_without_relays_is_a_usage_error() -> None:
    code, output = run("up", "--engine", "sim", "--pipeline", "relay", "--relays", "0")
    assert code == 2
    assert "needs at least one relay" in output


def test_a_missing_model_is_told_before_anything_starts(tmp_path: Path) -> None:
    code, output = run("up", "--engine", "llama", "--model-dir", str(tmp_path / "none"))
    assert code == 1
    assert re.search(r"pdd: .*(pdd model fetch|make setup-llama)", output)
    assert "started" not in output


def test_asking_nobody_is_one_line_and_exit_code_1() -> None:
    code, output = run("ask", "--url", "127.0.0.1:1", "hello")
    assert code == 1
    assert output.strip().startswith("pdd: no gateway at 127.0.0.1:1")
    assert "Traceback" not in output


def test_health_of_nobody_is_exit_code_1() -> None:
    assert run("health", "127.0.0.1:1")[0] == 1


def test_a_gguf_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    code, output = run("model", "fetch", "--gguf", str(tmp_path / "no.gguf"), "--dir", str(tmp_path / "model"))
    assert code == 1
    assert "no.gguf" in output
    assert "Traceback" not in output


def test_the_link_is_named_before_the_mesh_starts() -> None:
    line = describe(MeshOptions(engine=EngineName.SIM, rate_mbit=20, rtt_ms=40))
    assert "engine sim" in line
    assert "20 Mbit/s, 40 ms RTT" in line
