"""Prefill when something goes wrong: a target, the engine, the budget, the lease."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pdd.engine.base import EngineFault, Payload
from pdd.engine.sim.model import SimModel
from pdd.engine.sim.reference import continuation
from pdd.identity import Instance, RequestId
from pdd.v1 import kv_pb2, prefill_pb2
from tests.eventually import eventually
from tests.mesh.services.conftest import Site
from tests.mesh.services.gateways import attached_decoder, attached_prefill
from tests.mesh.services.instances import (
    BLOCK_TOKENS,
    PACED,
    greedy,
    prompt,
    running_main,
    running_prefill,
)

REQUEST = RequestId(5, 1)
IDS = prompt(300)
NOBODY = (Instance("main-9", 1), "127.0.0.1:9")  # the discard port, where nothing listens


async def test_a_lost_target_leaves_the_other_alone(site: Site) -> None:
    await site.to_relay.admit(1, REQUEST, IDS, greedy(9), decode_on_commit=True)
    await site.to_prefill.start(1, REQUEST, IDS, greedy(9), [NOBODY, site.relay.target])
    failed = (await site.to_prefill.until_told(1, "transfer_failed")).transfer_failed
    assert (failed.target, failed.reason) == ("main-9", kv_pb2.REFUSAL_REASON_UNSPECIFIED)
    assert (await site.to_relay.until_closed(1)).ids == continuation(IDS, 9, ignore_eos=True)[1:]
    assert "transfer_done" in await site.to_prefill.until_released(1)
    await site.until_free()


async def test_with_every_target_gone_computing_stops(paced: Site) -> None:
    long = prompt(3000)  # 2 s of prefill
    await paced.to_prefill.start(1, REQUEST, long, greedy(9), [NOBODY])
    assert await paced.to_prefill.until_released(1) == ["transfer_failed", "released"]
    assert paced.prefill.engine.load().queued_tokens == 0
    await paced.until_free()


async def test_a_target_without_memory_refuses_by_name() -> None:
    async with (
        running_prefill() as prefill,
        running_main(budget_blocks=4) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        await to_main.admit(1, REQUEST, IDS, greedy(9))
        await to_prefill.start(1, REQUEST, IDS, greedy(9), [main.target])
        failed = (await to_prefill.until_told(1, "transfer_failed")).transfer_failed
        assert failed.reason == kv_pb2.REFUSAL_REASON_NO_MEMORY
        assert (await to_main.until_closed(1)).error.message.startswith("NO_MEMORY")
        await eventually(lambda: prefill.holds_nothing and main.holds_nothing)


@pytest.fixture
async def small() -> AsyncIterator[Site]:
    """Prefill has memory for one prompt of IDS at a time."""
    blocks = len(IDS) // BLOCK_TOKENS
    async with (
        running_prefill(PACED, budget_blocks=blocks) as prefill,
        running_main(PACED) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        yield Site(prefill, main, main, to_prefill, to_main, to_main)


async def test_more_than_the_budget_is_refused_with_what_to_raise(small: Site) -> None:
    for counter in (1, 2):
        await small.to_main.admit(counter, RequestId(5, counter), IDS, greedy(9))
        await small.to_prefill.start(counter, RequestId(5, counter), IDS, greedy(9), [small.main.target])
    assert await small.to_prefill.until_released(2) == ["failed", "released"]
    failed = small.to_prefill.told[2][0].failed
    assert failed.code == prefill_pb2.PREFILL_ERROR_CODE_OVERLOADED
    assert "PDD_KV_BUDGET_MB" in failed.message
    await small.to_prefill.until_released(1)
    # What the first one held is free again.
    await small.to_prefill.start(3, RequestId(5, 2), IDS, greedy(9), [small.main.target])
    assert "transfer_done" in await small.to_prefill.until_released(3)


async def test_a_prompt_that_can_never_fit_is_told_so_by_prefill_and_by_the_receiver(small: Site) -> None:
    long = prompt(2 * len(IDS))
    await small.to_prefill.start(1, REQUEST, long, greedy(9), [small.main.target])
    assert await small.to_prefill.until_released(1) == ["failed", "released"]
    told = [small.to_prefill.told[1][0].failed.message]
    async with running_main(budget_blocks=4) as main, attached_decoder(main.address) as to_main:
        await to_main.admit(1, RequestId(5, 2), IDS, greedy(9))
        await small.to_prefill.start(2, RequestId(5, 2), IDS, greedy(9), [main.target])
        told.append((await small.to_prefill.until_told(2, "transfer_failed")).transfer_failed.message)
        told.append((await to_main.until_closed(1)).error.message)
    assert all("PDD_KV_BUDGET_MB" in text and "retry" not in text for text in told), told


async def test_a_lease_that_runs_out_ends_the_job_and_its_transfers(paced: Site) -> None:
    await paced.to_main.admit(1, REQUEST, IDS, greedy(9))
    await paced.to_prefill.start(1, REQUEST, IDS, greedy(9), [paced.main.target], lease_ms=50)
    kinds = await paced.to_prefill.until_released(1)
    failed = next(event.failed for event in paced.to_prefill.told[1] if event.HasField("failed"))
    assert failed.code == prefill_pb2.PREFILL_ERROR_CODE_LEASE_EXPIRED
    assert "first_token" not in kinds
    assert (await paced.to_main.until_closed(1)).tokens == []
    await paced.until_free()


class ModelThatLosesItsKv(SimModel):
    def export_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        if last_block > 8:
            raise EngineFault("block 8 can't be read: restart the instance")
        return super().export_kv(slot, first_block, last_block)


async def test_an_engine_that_fails_in_the_middle_cancels_the_transfers() -> None:
    async with (
        running_prefill(PACED, kind=ModelThatLosesItsKv) as prefill,
        running_main() as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        await to_main.admit(1, REQUEST, IDS, greedy(9))
        await to_main.extend(1, 0, [5], then_decode=True)
        await to_prefill.start(1, REQUEST, IDS, greedy(9), [main.target])
        assert await to_prefill.until_released(1) == ["wanted", "failed", "released"]
        failed = to_prefill.told[1][1].failed
        assert failed.code == prefill_pb2.PREFILL_ERROR_CODE_ENGINE_FAILED
        assert "block 8 can't be read" in failed.message
        told = await to_main.until_closed(1)
        assert told.error.message.startswith("CANCELLED_ATTEMPT")
        assert told.tokens == []
        await eventually(lambda: prefill.holds_nothing and main.holds_nothing)


async def test_a_handle_used_twice_ends(paced: Site) -> None:
    await paced.to_prefill.start(1, REQUEST, IDS, greedy(9), [paced.main.target])
    await paced.to_prefill.start(1, RequestId(5, 2), IDS, greedy(9), [paced.main.target])
    kinds = await paced.to_prefill.until_released(1)
    assert kinds.count("failed") == kinds.count("released") == 1
    await paced.to_prefill.start(1, RequestId(5, 3), IDS, greedy(9), [paced.main.target])
    await paced.to_prefill.until(lambda: paced.to_prefill.kinds(1).count("released") == 2)
    await paced.until_free()


async def test_load_tells_what_is_queued_and_what_is_pinned(paced: Site) -> None:
    await paced.to_main.admit(1, REQUEST, IDS, greedy(9))
    await paced.to_prefill.start(1, REQUEST, IDS, greedy(9), [paced.main.target])
    await paced.to_prefill.until_released(1)
    loads = [frame.load for frame in paced.to_prefill.frames]
    queued = [load.queued_tokens for load in loads]
    assert max(queued) == len(IDS)
    assert max(load.kv_used for load in loads) > 0
    await paced.to_prefill.until(
        lambda: (paced.to_prefill.frames[-1].load.queued_tokens, paced.to_prefill.frames[-1].load.kv_used) == (0, 0)
    )
