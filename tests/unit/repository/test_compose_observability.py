"""The configuration of the profile `observability`, as data: no image of it can be had everywhere."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.repository.test_compose import INSTANCES, SERVICES, names_in, networks

DEPLOY = Path(__file__).parents[3] / "deploy"


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def scraped() -> dict[str, str]:
    """host:port by job."""
    found = {}
    for job in read("prometheus/prometheus.yml")["scrape_configs"]:
        if "dns_sd_configs" in job:
            (names,) = job["dns_sd_configs"]
            (host,) = names["names"]
            found[job["job_name"]] = f"{host}:{names['port']}"
            assert names["type"] == "A"
        else:
            (targets,) = job["static_configs"]
            (found[job["job_name"]],) = targets["targets"]
    return found


def test_every_process_is_scraped_where_it_tells_its_metrics() -> None:
    own = SERVICES["wan"]["environment"]["PDD_WAN_CONTROL_LISTEN"].rpartition(":")[2]
    http = SERVICES["gateway"]["environment"]["PDD_HTTP"].rpartition(":")[2]
    expected = {name: f"{name}:{SERVICES[name]['environment']['PDD_METRICS'].rpartition(':')[2]}" for name in INSTANCES}
    assert scraped() == expected | {"gateway": f"gateway:{http}", "wan": f"wan-site-a:{own}"}


def test_prometheus_can_resolve_all_that_it_scrapes() -> None:
    assert {address.partition(":")[0] for address in scraped().values()} <= names_in(networks("prometheus"))


def test_grafana_has_the_data_source_that_the_dashboards_name() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert (source["uid"], source["type"], source["url"]) == ("prometheus", "prometheus", "http://prometheus:9090")
    assert networks("grafana") & networks("prometheus")


def test_grafana_looks_for_dashboards_where_they_are_mounted() -> None:
    (provider,) = read("grafana/provisioning/dashboards/pdd.yaml")["providers"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def test_the_collector_is_reached_from_both_sites_by_what_it_takes() -> None:
    config = read("otel/collector.yaml")
    assert config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == "0.0.0.0:4317"
    assert networks("otel-collector") == {"site-a", "site-b"}


@pytest.mark.parametrize("part", ["receivers", "processors", "exporters"])
def test_the_collectors_pipeline_is_made_of_what_is_defined(part: str) -> None:
    config = read("otel/collector.yaml")
    assert set(config["service"]["pipelines"]["traces"][part]) == set(config[part])
