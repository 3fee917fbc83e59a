"""docs/metrics.md names every metric of every process, and none that does not exist; so do the dashboards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdd.catalog.base import Role
from tests.unit.repository.metrics import ROOT, TEXT, documented, sample_names, told

PROCESSES = ["gateway", "wan", *(role.value for role in Role)]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
_NAME = re.compile(r"\bpdd_\w+")


@pytest.mark.parametrize("process", PROCESSES)
async def test_every_metric_is_documented_where_it_is_told_and_every_documented_one_exists(process: str) -> None:
    assert set(documented()[process]) == set((await told())[process])


@pytest.mark.parametrize("process", PROCESSES)
async def test_types_and_labels_are_documented_as_they_are(process: str) -> None:
    rows = documented()[process]
    for name, found in (await told())[process].items():
        assert rows[name].kind == found.kind, name
        if found.labels is not None:
            assert rows[name].labels == found.labels, name


@pytest.mark.parametrize("process", PROCESSES)
def test_a_name_has_its_unit(process: str) -> None:
    """As Prometheus wants it: base units, and `_total` for counters alone."""
    for name, one in documented()[process].items():
        assert name.endswith("_total") == (one.kind == "counter"), name
        assert not re.search(r"_(ms|us|kb|mb|mib|percent)(_|$)", name), name


@pytest.mark.parametrize("text", [TEXT, (ROOT / "docs" / "operations.md").read_text()], ids=["metrics.md", "operations.md"])
def test_metrics_in_advice_and_queries_exist(text: str) -> None:
    rows = {name: one for metrics in documented().values() for name, one in metrics.items()}
    named = set(re.findall(r"\bpdd_[a-z_]+[a-z]", text)) - {"pdd_handoff"}  # a pattern for grep
    assert named - set(rows) - sample_names(rows) == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_asks_for_what_exists(path: Path) -> None:
    known = sample_names({name: one for metrics in documented().values() for name, one in metrics.items()})
    asked = {name for query in _queries(json.loads(path.read_text())) for name in _NAME.findall(query)}
    assert asked
    assert asked - known == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_uses_the_data_source_that_is_provided(path: Path) -> None:
    sources = [value for key, value in _pairs(json.loads(path.read_text())) if key == "datasource"]
    assert sources
    assert all(source == {"type": "prometheus", "uid": "prometheus"} for source in sources)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_of_a_dashboard_have_a_place_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def _queries(dashboard: Any) -> Iterator[str]:
    return (value for key, value in _pairs(dashboard) if key in ("expr", "query", "definition") and isinstance(value, str))


def _pairs(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _pairs(child)


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y
