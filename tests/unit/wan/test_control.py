from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from wan.control import make_app
from wan.link import LinkSettings, Outage
from wan.relay import MAX_FORWARDS, Relay

Client = TestClient[Any, Any]

LINK = {"rate_mbit": 20.0, "rtt_ms": 40.0, "jitter_ms": 0.0, "loss": 0.0, "outage": "none"}


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with Relay(LinkSettings(20.0, 40.0), "127.0.0.1", Random(1)) as running:
        yield running


@pytest.fixture
async def client(relay: Relay) -> AsyncIterator[Client]:
    async with TestClient(TestServer(make_app(relay))) as opened:
        yield opened


async def lease(client: Client, name: str = "main-0", target: str = "127.0.0.1:9") -> str:
    async with client.post("/forwards", json={"name": name, "target": target}) as response:
        assert response.status == 200
        body = await response.json()
    assert body["name"] == name
    address: str = body["address"]
    return address


async def test_health_answers(client: Client) -> None:
    async with client.get("/health") as response:
        assert response.status == 200


async def test_link_is_shown(client: Client) -> None:
    async with client.get("/link") as response:
        assert await response.json() == LINK


async def test_patch_changes_what_it_names_and_nothing_else(client: Client, relay: Relay) -> None:
    async with client.patch("/link", json={"rtt_ms": 5, "outage": "black_hole"}) as response:
        assert await response.json() == LINK | {"rtt_ms": 5.0, "outage": "black_hole"}
    assert relay.settings == LinkSettings(20.0, 5.0, outage=Outage.BLACK_HOLE)


async def test_null_rate_means_no_limit(client: Client, relay: Relay) -> None:
    async with client.patch("/link", json={"rate_mbit": None}) as response:
        assert response.status == 200
    assert relay.settings.rate_mbit is None


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"rate_mbit": 0}, "rate_mbit"),
        ({"rate_mbit": "fast"}, "rate_mbit"),
        ({"rtt_ms": -1}, "rtt_ms"),
        ({"rtt_ms": None}, "rtt_ms"),
        ({"loss": 1}, "loss"),
        ({"outage": "flood"}, "outage"),
        ({"latency": 1}, "latency"),
        ([], "body"),
    ],
)
async def test_bad_link_is_refused_by_name_and_changes_nothing(client: Client, relay: Relay, body: object, named: str) -> None:
    async with client.patch("/link", json=body) as response:
        assert response.status == 400
        assert named in (await response.json())["error"]
    assert relay.settings == LinkSettings(20.0, 40.0)


async def test_name_is_leased_the_same_port_again(client: Client) -> None:
    address = await lease(client)
    assert address.startswith("127.0.0.1:")
    assert await lease(client) == address
    assert await lease(client, target="127.0.0.1:10") == address
    assert await lease(client, name="main-1") != address


@pytest.mark.parametrize(
    "body",
    [
        {"name": "main-0"},
        {"name": "", "target": "127.0.0.1:9"},
        {"name": "x" * 65, "target": "127.0.0.1:9"},
        {"name": "main-0", "target": "127.0.0.1"},
        {"name": "main-0", "target": "127.0.0.1:0"},
        {"name": "main-0", "target": ":9"},
        {"name": "main-0", "target": "127.0.0.1:9", "port": 1},
    ],
)
async def test_bad_lease_is_refused(client: Client, relay: Relay, body: object) -> None:
    async with client.post("/forwards", json=body) as response:
        assert response.status == 400
    assert relay.counters().forwards == ()


async def test_body_that_is_no_json_is_refused(client: Client) -> None:
    async with client.post("/forwards", data=b"{") as response:
        assert response.status == 400
        assert "JSON" in (await response.json())["error"]


async def test_number_of_forwards_is_bounded(client: Client, relay: Relay) -> None:
    for number in range(MAX_FORWARDS):
        await relay.lease(f"main-{number}", "127.0.0.1:9")
    async with client.post("/forwards", json={"name": "one more", "target": "127.0.0.1:9"}) as response:
        assert response.status == 409
        assert "one more" in (await response.json())["error"]


async def test_deleted_forward_is_gone(client: Client, relay: Relay) -> None:
    await lease(client)
    async with client.delete("/forwards/main-0") as response:
        assert response.status == 204
    async with client.delete("/forwards/main-0") as response:
        assert response.status == 404
        assert "main-0" in (await response.json())["error"]
    assert relay.counters().forwards == ()


async def test_counters_start_at_zero(client: Client) -> None:
    address = await lease(client)
    async with client.get("/counters") as response:
        assert await response.json() == {
            "forwards": [
                {
                    "name": "main-0",
                    "target": "127.0.0.1:9",
                    "address": address,
                    "connections": [],
                    "a_to_b_bytes": 0,
                    "b_to_a_bytes": 0,
                }
            ],
            "a_to_b_bytes": 0,
            "b_to_a_bytes": 0,
        }


async def test_unknown_path_and_method_are_errors_in_json(client: Client) -> None:
    async with client.get("/nothing") as response:
        assert response.status == 404
        assert "/nothing" in (await response.json())["error"]
    async with client.put("/link") as response:
        assert response.status == 405
        assert "error" in await response.json()


async def test_metrics_show_the_line_and_each_forward(client: Client, relay: Relay) -> None:
    await lease(client)
    async with client.get("/metrics") as response:
        told = (await response.text()).splitlines()
    assert {
        "pdd_link_rate_bytes_per_second 2.5e+06",
        "pdd_link_round_trip_seconds 0.04",
        "pdd_link_up 1.0",
        'pdd_link_bytes_total{direction="a_to_b",forward="main-0"} 0.0',
        'pdd_link_bytes_total{direction="b_to_a",forward="main-0"} 0.0',
        'pdd_link_connections{forward="main-0"} 0.0',
    } <= set(told)
    await relay.configure(LinkSettings(None, 0.0, outage=Outage.BLACK_HOLE))
    async with client.get("/metrics") as response:
        told = (await response.text()).splitlines()
    assert {"pdd_link_rate_bytes_per_second +Inf", "pdd_link_up 0.0"} <= set(told)
