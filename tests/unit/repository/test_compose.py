"""compose.yaml as data; what it does in a container engine is tested in tests/compose."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdd.cli.plan import GATEWAY_ENVIRONMENT
from pdd.engine.config import EngineSettings

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
MESH = sorted(SERVICES.keys() - PROFILES.keys())
INSTANCES = ["main", "prefill", "relay"]
PROCESSES = sorted({*INSTANCES, "gateway", "wan"})
ENDS = {"model"}
UNASKED = {"otel-collector"}  # nothing in its image could ask
SHARED_NETWORK = {"locust"}


def networks(service: str) -> set[str]:
    return set(SERVICES[service].get("networks", []))


def test_every_process_of_the_mesh_is_a_service() -> None:
    assert set(MESH) == {"model", "redis", *PROCESSES}
    assert PROFILES == {
        "locust": ["load"],
        "prometheus": ["observability"],
        "grafana": ["observability"],
        "otel-collector": ["observability"],
    }


def test_the_two_sites_are_joined_by_wan_alone() -> None:
    assert set(COMPOSE["networks"]) == {"site-a", "site-b"}
    assert {name for name in MESH if networks(name) == {"site-a", "site-b"}} == {"wan"}
    assert {name for name in MESH if networks(name) == {"site-b"}} == {"main"}


@pytest.mark.parametrize("service", sorted(SERVICES.keys() - ENDS - UNASKED))
def test_every_service_has_a_health_check(service: str) -> None:
    assert SERVICES[service]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_is_kept_within_bounds(service: str) -> None:
    found = SERVICES[service]
    assert set(found["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["logging"]["options"]["max-size"]


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_but_the_one_that_ends_is_started_again(service: str) -> None:
    assert SERVICES[service]["restart"] == ("no" if service in ENDS else "unless-stopped")


@pytest.mark.parametrize("service", MESH)
def test_a_service_starts_after_what_it_needs(service: str) -> None:
    ready = {"model": "service_completed_successfully"}
    for name, how in SERVICES[service].get("depends_on", {}).items():
        assert how == {"condition": ready.get(name, "service_healthy")}
    assert service in {"model", "redis"} or SERVICES[service]["depends_on"]


@pytest.mark.parametrize("service", PROCESSES)
def test_every_process_runs_a_module_that_exists(service: str) -> None:
    python, flag, module = SERVICES[service]["command"]
    assert (python, flag) == ("python", "-m")
    assert (ROOT / module.replace(".", "/") / "__main__.py").is_file()


@pytest.mark.parametrize("service", PROCESSES)
def test_names_that_a_service_is_given_can_be_resolved_on_its_networks(service: str) -> None:
    known = {"0.0.0.0", "127.0.0.1", *names_in(networks(service))}
    for variable, value in SERVICES[service]["environment"].items():
        found = re.fullmatch(r"(?:\w+://)?([\w.-]+):\d+(?:/.*)?", str(value))
        if found:
            assert found[1] in known, variable


def names_in(sites: set[str]) -> set[str]:
    """What can be resolved there: services and their aliases."""
    known = set()
    for name, other in SERVICES.items():
        attached = other.get("networks", [])
        for network in sites & networks(name):
            known |= {name, *((attached[network] or {}).get("aliases", []) if isinstance(attached, dict) else [])}
    return known


@pytest.mark.parametrize("service", INSTANCES)
def test_replicas_of_an_instance_have_nothing_in_common_that_must_differ(service: str) -> None:
    assert not {"PDD_INSTANCE_ID", "PDD_ADVERTISE"} & SERVICES[service]["environment"].keys()
    assert not {"ports", "container_name", "hostname"} & SERVICES[service].keys()


def test_the_gateway_is_set_up_as_in_a_local_mesh() -> None:
    assert GATEWAY_ENVIRONMENT.items() <= SERVICES["gateway"]["environment"].items()


def test_the_gateway_is_healthy_only_when_it_can_answer() -> None:
    assert "/ready" in SERVICES["gateway"]["healthcheck"]["test"][-1]


def test_everything_published_stays_on_this_machine() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_load_goes_to_this_machine_alone() -> None:
    assert SERVICES["locust"]["network_mode"] == "service:gateway"
    command = SERVICES["locust"]["command"]
    assert command[command.index("--host") + 1] == "http://127.0.0.1:8000"


def test_every_setting_has_its_default_in_the_example() -> None:
    example = dict(
        line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")
    )
    used = re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / "compose.yaml").read_text())
    assert sorted(example.items()) == sorted(set(used))


def test_the_engine_is_the_real_one_and_its_image_another_than_the_simulated_ones() -> None:
    engine = "${PDD_ENGINE:-llama}"
    for service in ["model", *PROCESSES]:
        assert SERVICES[service]["image"] == f"pdd:{engine}"
    assert SERVICES["model"]["build"]["args"] == {"EXTRAS": engine}
    assert {SERVICES[service]["environment"]["PDD_ENGINE"] for service in INSTANCES} == {engine}
    assert set(EngineSettings.model_fields["engine"].annotation.__args__) == {"sim", "llama"}  # type: ignore[union-attr]


@pytest.mark.parametrize("service", ["gateway", "locust", *INSTANCES])
def test_the_model_is_fetched_to_where_it_is_read(service: str) -> None:
    volume = "${PDD_MODELS:-models}:/models"
    assert SERVICES["model"]["volumes"] == [volume]
    assert f"{volume}:ro" in SERVICES[service]["volumes"]


def test_files_that_are_mounted_exist() -> None:
    mounted = [volume for service in SERVICES.values() for volume in service.get("volumes", []) if volume.startswith("./")]
    assert len(mounted) >= 4
    for volume in mounted:
        assert (ROOT / volume.split(":")[0]).is_dir(), volume


def test_the_image_does_not_run_as_root() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("FROM ")
    assert re.search(r"^USER (?!root)\w+$", stages[-1], re.MULTILINE)


def test_the_image_can_be_built_by_every_builder() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"^# *syntax|--mount|<<", text, re.MULTILINE)


def test_what_the_image_is_built_of_is_let_through() -> None:
    let_through = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        copied |= set(source.split())
    assert copied == let_through
    assert all((ROOT / path).exists() for path in copied)
