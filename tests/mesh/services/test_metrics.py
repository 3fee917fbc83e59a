"""What the three services tell Prometheus of requests that run over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from pdd.catalog.base import Role
from pdd.engine.sim.model import SimConfig
from pdd.engine.sim.reference import continuation
from pdd.identity import Instance, RequestId
from pdd.rpc.server import serve
from tests.eventually import eventually
from tests.mesh.services.gateways import DecodeStream, PrefillStream, attached_decoder, attached_prefill
from tests.mesh.services.instances import BLOCK_TOKENS, FAST, PACED, greedy, prompt
from tests.support.metered import BUDGET_BLOCKS, Metered, metered_instance

IDS = prompt(300)
BLOCKS = len(IDS) // BLOCK_TOKENS
OUTPUT = continuation(IDS, 40, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Site:
    prefill: Metered
    relay: Metered
    main: Metered
    to_prefill: PrefillStream
    to_relay: DecodeStream
    to_main: DecodeStream
    targets: tuple[tuple[Instance, str], ...]

    async def start(self, handle: int, request: RequestId) -> None:
        await self.to_relay.admit(handle, request, IDS, greedy(40), decode_on_commit=True)
        await self.to_main.admit(handle, request, IDS, greedy(40))
        await self.to_prefill.start(handle, request, IDS, greedy(40), self.targets)

    async def hand_over(self, handle: int, request: RequestId) -> None:
        """Main takes over after 10 tokens, and makes the rest."""
        await self.start(handle, request)
        await self.to_main.extend(handle, 0, OUTPUT[:10], then_decode=True)
        await self.to_main.until_closed(handle)
        await self.to_relay.until_closed(handle)
        await self.to_prefill.until_told(handle, "released")


@asynccontextmanager
async def running_site(config: SimConfig) -> AsyncIterator[Site]:
    async with (
        metered_instance(Role.PREFILL, config) as prefill,
        metered_instance(Role.RELAY, config) as relay,
        metered_instance(Role.MAIN, config) as main,
        serve("127.0.0.1:0", prefill.served.register) as at_prefill,
        serve("127.0.0.1:0", relay.served.register) as at_relay,
        serve("127.0.0.1:0", main.served.register) as at_main,
        attached_prefill(at_prefill.address) as to_prefill,
        attached_decoder(at_relay.address) as to_relay,
        attached_decoder(at_main.address) as to_main,
    ):
        targets = ((relay.served.instance, at_relay.address), (main.served.instance, at_main.address))
        yield Site(prefill, relay, main, to_prefill, to_relay, to_main, targets)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running_site(FAST) as built:
        yield built


@pytest.fixture
async def paced() -> AsyncIterator[Site]:
    async with running_site(PACED) as built:
        yield built


async def test_kv_counts_once_where_it_was_sent_and_once_where_it_came(site: Site) -> None:
    await site.hand_over(1, RequestId(5, 1))
    size = BLOCKS * site.main.read("pdd_kv_block_bytes")
    for target in ("relay-0", "main-0"):
        assert site.prefill.read("pdd_transfer_sent_bytes_total", target=target, outcome="used") == size
        assert site.prefill.read("pdd_transfers_total", target=target) == 1
        assert site.prefill.read("pdd_transfer_seconds_count", target=target) == 1
        assert site.prefill.read("pdd_transfer_behind_seconds_count", target=target) == 1
    assert site.prefill.read("pdd_transfer_sent_bytes_total") == 2 * size
    assert site.main.read("pdd_wan_bytes_total", kind="kv", outcome="used") == size
    assert site.main.read("pdd_wan_bytes_total", kind="kv") == size
    assert site.main.read("pdd_wan_bytes_total", kind="tokens", direction="in") > 0
    assert site.main.read("pdd_wan_bytes_total", kind="tokens", direction="out") > 0
    assert site.main.read("pdd_offer_wait_seconds_count") == site.relay.read("pdd_offer_wait_seconds_count") == 1


async def test_what_main_has_cached_is_a_hit_and_does_not_cross(site: Site) -> None:
    await site.hand_over(1, RequestId(5, 1))
    crossed = site.main.read("pdd_wan_bytes_total", kind="kv")
    assert site.main.read("pdd_prefix_cache_hit_tokens_total") == 0
    await site.hand_over(2, RequestId(5, 2))
    full = BLOCKS * BLOCK_TOKENS
    assert site.main.read("pdd_wan_bytes_total", kind="kv") == crossed
    assert site.main.read("pdd_prefix_cache_hit_tokens_total") == full
    assert site.main.read("pdd_prefix_cache_queried_tokens_total") == 2 * full
    assert site.prefill.read("pdd_prefix_cache_hit_tokens_total") == full
    assert site.prefill.read("pdd_prefix_cache_queried_tokens_total") == 2 * len(IDS)


async def test_waits_steps_and_extends_are_told_of_each_request(site: Site) -> None:
    await site.hand_over(1, RequestId(5, 1))
    assert site.prefill.read("pdd_prefill_queue_seconds_count") == site.prefill.read("pdd_prefill_compute_seconds_count") == 1
    assert site.main.read("pdd_slot_wait_seconds_count") == site.relay.read("pdd_slot_wait_seconds_count") == 1
    assert site.main.read("pdd_extends_total") == 1
    tail = len(IDS) - BLOCKS * BLOCK_TOKENS
    assert site.main.read("pdd_extend_computed_tokens_total") == tail + 10
    assert site.main.read("pdd_engine_sampled_tokens_total") == 30
    assert site.main.read("pdd_engine_computed_tokens_total") == tail + 10 + 29
    assert site.prefill.read("pdd_engine_computed_tokens_total") == len(IDS)
    assert site.main.read("pdd_engine_step_seconds_count") == site.main.read("pdd_engine_step_sequences_count") >= 30


async def test_a_cancelled_transfer_counts_as_cancelled_and_what_main_kept_of_it_as_cached(paced: Site) -> None:
    await paced.start(1, RequestId(5, 1))
    await eventually(lambda: paced.main.read("pdd_kv_blocks", state="transit") > 0)
    assert paced.main.read("pdd_kv_blocks", state="reserved") > 0
    for stream in (paced.to_prefill, paced.to_relay, paced.to_main):
        await stream.abort(1)
    await paced.to_prefill.until_told(1, "released")
    await eventually(lambda: paced.main.read("pdd_kv_leases") == 0)
    assert paced.prefill.read("pdd_transfers_total", outcome="cancelled") == paced.prefill.read("pdd_transfers_total") == 2
    await eventually(lambda: paced.main.read("pdd_wan_bytes_total", kind="kv", outcome="cached") > 0)
    assert paced.main.read("pdd_wan_bytes_total", kind="kv", outcome="used") == 0
    kept = paced.main.read("pdd_kv_blocks", state="cached") * paced.main.read("pdd_kv_block_bytes")
    assert paced.main.read("pdd_wan_bytes_total", kind="kv", outcome="cached") == kept


async def test_every_block_of_the_budget_is_in_one_state(paced: Site) -> None:
    await paced.start(1, RequestId(5, 1))
    await eventually(lambda: paced.main.read("pdd_kv_blocks", state="transit") > 0)
    for one in (paced.prefill, paced.relay, paced.main):
        assert one.read("pdd_kv_blocks") == BUDGET_BLOCKS
        assert one.read("pdd_gateways_attached") == 1


async def test_whose_it_is_is_said_with_every_sample(site: Site) -> None:
    for role, one in ((Role.PREFILL, site.prefill), (Role.RELAY, site.relay), (Role.MAIN, site.main)):
        samples = [sample for family in one.registry.collect() for sample in family.samples]
        assert {(sample.labels["role"], sample.labels["instance_id"]) for sample in samples} == {(role.value, f"{role.value}-0")}


async def test_a_transfer_that_comes_to_nothing_says_how(site: Site) -> None:
    relay, (main, _) = site.targets
    nobody = (main, "127.0.0.1:1")
    await site.to_prefill.start(1, RequestId(5, 1), IDS, greedy(40), [relay, nobody])  # of which the relay was not told
    await site.to_prefill.until_told(1, "released")
    outcomes = {target: site.prefill.read("pdd_transfers_total", target=target) for target in ("relay-0", "main-0")}
    assert outcomes == {"relay-0": 1, "main-0": 1}
    assert site.prefill.read("pdd_transfers_total", target="relay-0", outcome="refused") == 1
    assert site.prefill.read("pdd_transfers_total", target="main-0", outcome="failed") == 1
    assert site.prefill.read("pdd_transfer_sent_bytes_total") == 0
