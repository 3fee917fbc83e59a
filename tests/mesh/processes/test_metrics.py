"""The services' own metrics pages, as Prometheus finds them."""

from __future__ import annotations

import json

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdd.catalog.base import Role
from pdd.catalog.embedded import embedded_valkey
from tests.mesh.processes.services import running_service
from tests.unit.repository.metrics import documented

pytestmark = pytest.mark.processes

ELSEWHERE = "192.0.2.1:9100"  # no address of any machine


@pytest.mark.parametrize("role", list(Role))
async def test_a_service_tells_of_itself_where_it_is_asked_to(role: Role) -> None:
    async with embedded_valkey() as redis_url, running_service(role, redis_url, PDD_METRICS="127.0.0.1:0") as process:
        address = json.loads(await process.until('"ready"'))["metrics"]
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as reply:
            families = list(text_string_to_metric_families(await reply.text()))
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    own = {name for name in names if name.startswith("pdd_") and not name.endswith("_created")}
    assert own == set(documented()[role.value])
    assert "process_resident_memory_bytes" in names
    labels = [sample.labels for family in families for sample in family.samples]
    assert all((one["role"], one["instance_id"]) == (role.value, f"{role.value}-0") for one in labels)


async def test_a_metrics_address_that_cannot_be_had_ends_the_process_with_a_line() -> None:
    async with embedded_valkey() as redis_url, running_service(Role.RELAY, redis_url, PDD_METRICS=ELSEWHERE) as process:
        code, said = await process.end()
    assert code == 1
    assert f"can't listen on {ELSEWHERE}" in said
    assert "Traceback" not in said
