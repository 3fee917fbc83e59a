"""What the documents tell a person to type exists."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdd.cli.main import app

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text(), re.MULTILINE)) <= MAKE_TARGETS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_pdd_commands_and_their_options_exist(document: Path) -> None:
    for line in re.findall(r"(?:^|`)pdd ([^`\n]*)", document.read_text(), re.MULTILINE):
        words = line.split()
        command = words[:2] if words[0] == "model" else words[:1]
        shown = CliRunner().invoke(app, [*command, "--help"], env={"TERMINAL_WIDTH": "200", "NO_COLOR": "1"})
        assert shown.exit_code == 0, line
        for option in re.findall(r"(--[a-z-]+)", line):
            assert option in shown.output, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text())
    for link in links:
        assert (document.parent / link).exists(), link


def test_the_two_commands_of_the_front_page_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
