import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from pdd.exposition import Labelled, serve_metrics
from pdd.rpc.errors import ListenError


async def test_metrics_are_served_with_whose_they_are() -> None:
    own, served = CollectorRegistry(), CollectorRegistry()
    Counter("steps", "Steps", ["kind"], registry=own).labels("extend").inc(3)
    served.register(Labelled(own, {"role": "main", "instance_id": "main-0"}))
    async with (
        serve_metrics("127.0.0.1:0", served) as address,
        aiohttp.ClientSession() as http,
        http.get(f"http://{address}/metrics") as reply,
    ):
        assert reply.headers["content-type"].startswith("text/plain")
        page = await reply.text()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    found = {sample.name: (sample.labels, sample.value) for sample in samples}
    assert found["steps_total"] == ({"role": "main", "instance_id": "main-0", "kind": "extend"}, 3)


async def test_a_label_of_a_metric_stands_before_whose_it_is() -> None:
    own = CollectorRegistry()
    Counter("placed", "Placed", ["role"], registry=own).labels("relay").inc()
    family = next(iter(Labelled(own, {"role": "main"}).collect()))
    assert {sample.labels["role"] for sample in family.samples} == {"relay"}


async def test_an_address_that_is_taken_is_named() -> None:
    async with serve_metrics("127.0.0.1:0", CollectorRegistry()) as address:
        with pytest.raises(ListenError, match=address):
            async with serve_metrics(address, CollectorRegistry()):
                pass
