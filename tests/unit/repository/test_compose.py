"""compose.yaml as data; what it does in a container engine is tested elsewhere."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdd.cli.plan import GATEWAY_ENVIRONMENT

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(SERVICES.keys() - {"redis"})


def networks(service: str) -> set[str]:
    return set(SERVICES[service]["networks"])


def test_every_process_of_the_mesh_is_a_service() -> None:
    assert set(SERVICES) == {"redis", "wan", "prefill", "relay", "main", "gateway"}


def test_the_two_sites_are_joined_by_wan_alone() -> None:
    assert set(COMPOSE["networks"]) == {"site-a", "site-b"}
    assert {name for name in SERVICES if networks(name) == {"site-a", "site-b"}} == {"wan"}
    assert {name for name in SERVICES if networks(name) == {"site-b"}} == {"main"}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_has_a_health_check(service: str) -> None:
    assert SERVICES[service]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("service", OURS)
def test_every_service_runs_a_module_that_exists(service: str) -> None:
    python, flag, module = SERVICES[service]["command"]
    assert (python, flag) == ("python", "-m")
    assert (ROOT / module.replace(".", "/") / "__main__.py").is_file()


@pytest.mark.parametrize("service", OURS)
def test_names_that_a_service_is_given_can_be_resolved_on_its_networks(service: str) -> None:
    known = {"0.0.0.0", "127.0.0.1"}
    for name, other in SERVICES.items():
        attached = other["networks"]
        for network in networks(service) & networks(name):
            known |= {name, *((attached[network] or {}).get("aliases", []) if isinstance(attached, dict) else [])}
    for variable, value in SERVICES[service]["environment"].items():
        found = re.fullmatch(r"(?:\w+://)?([\w.-]+):\d+(?:/.*)?", str(value))
        if found:
            assert found[1] in known, variable


def test_the_gateway_is_set_up_as_in_a_local_mesh() -> None:
    assert GATEWAY_ENVIRONMENT.items() <= SERVICES["gateway"]["environment"].items()


def test_everything_published_stays_on_this_machine() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_every_setting_has_its_default_in_the_example() -> None:
    example = dict(
        line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")
    )
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / "compose.yaml").read_text()))
    assert example == used


def test_the_image_does_not_run_as_root() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("FROM ")
    assert re.search(r"^USER (?!root)\w+$", stages[-1], re.MULTILINE)
    assert "--mount" not in "".join(stages)
