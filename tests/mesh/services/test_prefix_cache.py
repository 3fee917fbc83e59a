"""Prefix caches of prefill and main over real gRPC: what is cached is neither computed nor sent again; the text is the same."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from pdd.engine.sim.reference import continuation
from pdd.identity import Instance, RequestId
from pdd.rpc.server import serve
from pdd.v1 import kv_pb2, kv_pb2_grpc, prefill_pb2
from tests.eventually import eventually
from tests.mesh.services.conftest import Site
from tests.mesh.services.gateways import PrefillStream, attached_decoder, attached_prefill
from tests.mesh.services.instances import (
    BLOCK_TOKENS,
    FAST,
    PACED,
    greedy,
    prompt,
    running_main,
    running_prefill,
    running_relay,
)

OUTPUT = 12


def first_token(stream: PrefillStream, handle: int) -> prefill_pb2.FirstToken:
    return next(event.first_token for event in stream.told[handle] if event.HasField("first_token"))


def sent_blocks(stream: PrefillStream, handle: int) -> dict[str, int]:
    """Blocks sent in the transfers that were committed, by target."""
    done = [event.transfer_done for event in stream.told[handle] if event.HasField("transfer_done")]
    return {event.target: event.blocks for event in done}


async def answered(site: Site, handle: int, ids: list[int], relay: bool = False) -> None:
    """A request that main finishes after a handoff of index 0, with the reference text."""
    request, expected = RequestId(5, handle), continuation(ids, OUTPUT, ignore_eos=True)
    await site.to_main.admit(handle, request, ids, greedy(OUTPUT))
    targets = [site.main.target]
    if relay:
        await site.to_relay.admit(handle, request, ids, greedy(OUTPUT), decode_on_commit=True)
        targets.append(site.relay.target)
    await site.to_prefill.start(handle, request, ids, greedy(OUTPUT), targets)
    await site.to_main.extend(handle, 0, expected[:1], then_decode=True)
    assert (await site.to_main.until_closed(handle)).ids == expected[1:]
    if relay:
        assert (await site.to_relay.until_closed(handle)).ids == expected[1:]
    await site.to_prefill.until_released(handle)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 64, 65, 150])
async def test_a_prompt_seen_before_is_computed_from_its_last_block_and_not_sent(site: Site, tokens: int) -> None:
    ids, full = prompt(tokens), tokens // BLOCK_TOKENS
    await answered(site, 1, ids, relay=True)
    assert (first_token(site.to_prefill, 1).cached_tokens, sent_blocks(site.to_prefill, 1)["main-0"]) == (0, full)
    await answered(site, 2, ids, relay=True)
    hit = (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS  # the last token is always computed
    first = first_token(site.to_prefill, 2)
    assert (first.cached_tokens, first.computed_tokens) == (hit, tokens - hit)
    assert sent_blocks(site.to_prefill, 2) == {"main-0": 0, "relay-0": full}
    opening = site.to_main.told[2].opening[0].wanted
    assert (opening.missing_blocks, opening.missing_bytes) == (0, 0)
    await site.until_free()


@pytest.mark.parametrize(("at_prefill", "at_main"), [(0, 6), (6, 0), (3, 7), (7, 3), (9, 9), (9, 4)])
async def test_caches_warm_to_any_depths_give_the_same_text(site: Site, at_prefill: int, at_main: int) -> None:
    ids = prompt(150)
    if at_main:
        await answered(site, 1, ids[: at_main * BLOCK_TOKENS + 1])
    site.prefill.cache.clear()
    if at_prefill:
        known, request = ids[: at_prefill * BLOCK_TOKENS + 1], RequestId(5, 2)
        await site.to_relay.admit(2, request, known, greedy(2), decode_on_commit=True)
        await site.to_prefill.start(2, request, known, greedy(2), [site.relay.target])
        await site.to_prefill.until_released(2)
    await answered(site, 3, ids)
    assert first_token(site.to_prefill, 3).cached_tokens == at_prefill * BLOCK_TOKENS
    assert sent_blocks(site.to_prefill, 3) == {"main-0": 9 - at_main}
    await site.until_free()


async def test_a_cache_that_is_far_too_small_changes_no_text() -> None:
    draw = random.Random(3)
    async with (
        running_prefill(budget_blocks=30, cache_blocks=7) as prefill,
        running_main(budget_blocks=25, cache_blocks=11) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        site = Site(prefill, main, main, to_prefill, to_main, to_main)
        for handle in range(1, 30):
            kind = draw.randrange(3)
            ids = [*prompt(draw.randint(1, 200), kind), *prompt(draw.randint(0, 100), draw.randrange(6))]
            await answered(site, handle, ids)
            assert prefill.cache.used_bytes <= prefill.cache.limit_bytes
            assert main.cache.used_bytes <= main.cache.limit_bytes
        await site.until_free()


async def test_an_abort_leaves_what_was_made_and_what_came(paced: Site) -> None:
    ids = prompt(2000)  # 1.3 s of prefill, in chunks
    await paced.to_main.admit(1, RequestId(5, 1), ids, greedy(OUTPUT))
    await paced.to_prefill.start(1, RequestId(5, 1), ids, greedy(OUTPUT), [paced.main.target])
    whole = len(ids) // BLOCK_TOKENS * paced.prefill.engine.layout.block_bytes
    await paced.to_prefill.until(lambda: any(0 < link.backlog_bytes < whole for link in links_of(paced.to_prefill)))
    await paced.to_prefill.abort(1)
    await paced.to_main.abort(1)
    await paced.to_prefill.until_released(1)
    await paced.until_free()
    assert 0 < paced.prefill.cache.blocks < len(ids) // BLOCK_TOKENS
    assert paced.main.cache.blocks > 0
    at_main, at_prefill = paced.main.cache.blocks, paced.prefill.cache.blocks
    await answered(paced, 2, ids)
    assert first_token(paced.to_prefill, 2).cached_tokens == at_prefill * BLOCK_TOKENS
    assert sent_blocks(paced.to_prefill, 2) == {"main-0": len(ids) // BLOCK_TOKENS - at_main}


async def test_a_request_cancelled_in_mid_transfer_leaves_no_trace_in_those_that_take_its_memory() -> None:
    """Main's memory holds one prompt; each one that follows needs what the cancelled one held."""
    blocks = 600 // BLOCK_TOKENS
    async with (
        running_prefill(PACED, cache_blocks=blocks) as prefill,
        running_main(FAST, budget_blocks=blocks, cache_blocks=blocks) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        site = Site(prefill, main, main, to_prefill, to_main, to_main)
        ids = prompt(600)
        await to_main.admit(1, RequestId(5, 1), ids, greedy(OUTPUT))
        await to_prefill.start(1, RequestId(5, 1), ids, greedy(OUTPUT), [main.target])
        await eventually(lambda: main.store.leased_bytes > 0)
        await to_main.abort(1)
        for handle in range(2, 6):
            await answered(site, handle, prompt(590, seed=handle))
        await site.until_free()


# ── several at once ──


@asynccontextmanager
async def several() -> AsyncIterator[Site]:
    """A prefill that takes its time, and a main that takes none."""
    async with (
        running_prefill(PACED, budget_blocks=1000, cache_blocks=500) as prefill,
        running_main(FAST, budget_blocks=1000, cache_blocks=500) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        yield Site(prefill, main, main, to_prefill, to_main, to_main)


async def started(site: Site, handle: int, ids: list[int]) -> None:
    await site.to_main.admit(handle, RequestId(5, handle), ids, greedy(OUTPUT))
    await site.to_prefill.start(handle, RequestId(5, handle), ids, greedy(OUTPUT), [site.main.target])


async def finished(site: Site, handle: int, ids: list[int]) -> None:
    expected = continuation(ids, OUTPUT, ignore_eos=True)
    await site.to_main.extend(handle, 0, expected[:1], then_decode=True)
    assert (await site.to_main.until_closed(handle)).ids == expected[1:]
    await site.to_prefill.until_released(handle)


def loads(stream: PrefillStream) -> list[prefill_pb2.PrefillLoad]:
    return [frame.load for frame in stream.frames]


def links_of(stream: PrefillStream) -> list[prefill_pb2.LinkLoad]:
    """As they were told, at all times."""
    return [link for load in loads(stream) for link in load.links]


@pytest.mark.parametrize("requests", [2, 8])
async def test_a_prefix_that_several_share_is_computed_once_and_crosses_once(requests: int) -> None:
    shared, own = 60 * BLOCK_TOKENS, 3 * BLOCK_TOKENS
    prompts = {handle: [*prompt(shared), *prompt(own, seed=handle)] for handle in range(1, requests + 1)}
    async with several() as site:
        for handle, ids in prompts.items():
            await started(site, handle, ids)
        for handle, ids in prompts.items():
            await finished(site, handle, ids)
        computed = sum(first_token(site.to_prefill, handle).computed_tokens for handle in prompts)
        assert computed == shared + requests * own
        blocks = sum(sent_blocks(site.to_prefill, handle)["main-0"] for handle in prompts)
        assert blocks == computed // BLOCK_TOKENS
        assert max(load.waiting for load in loads(site.to_prefill)) >= requests - 1
        await site.until_free()


async def test_a_job_that_waits_goes_on_from_what_the_other_made_when_that_is_aborted() -> None:
    ids = prompt(1200)
    async with several() as site:
        await started(site, 1, ids)
        await started(site, 2, [*ids, 7])
        await eventually(lambda: site.main.store.leased_bytes > 0)
        await site.to_prefill.until(lambda: 0 < loads(site.to_prefill)[-1].queued_tokens < 1201)
        await site.to_prefill.abort(1)
        await site.to_main.abort(1)
        await finished(site, 2, [*ids, 7])
        first = first_token(site.to_prefill, 2)
        assert first.cached_tokens > 0
        assert first.cached_tokens + first.computed_tokens == 1201
        await site.until_free()


async def test_a_job_that_waits_can_be_aborted_and_holds_nobody_up() -> None:
    ids = prompt(900)
    async with several() as site:
        for handle, asked in ((1, ids), (2, [*ids, 7]), (3, [*ids, 7, 8])):
            await started(site, handle, asked)
        await site.to_prefill.abort(2)
        await site.to_main.abort(2)
        assert "first_token" not in await site.to_prefill.until_released(2)
        await finished(site, 1, ids)
        await finished(site, 3, [*ids, 7, 8])
        await site.until_free()


async def test_a_job_that_waits_ends_when_its_targets_are_gone() -> None:
    ids, nobody = prompt(900), (Instance("main-9", 1), "127.0.0.1:9")  # the discard port, where nothing listens
    async with several() as site:
        await started(site, 1, ids)
        await site.to_prefill.start(2, RequestId(5, 2), [*ids, 7], greedy(OUTPUT), [nobody])
        assert await site.to_prefill.until_released(2) == ["transfer_failed", "released"]
        await finished(site, 1, ids)
        await site.until_free()


async def test_a_job_that_waits_and_then_finds_no_memory_is_refused_as_overloaded() -> None:
    ids = prompt(400)
    async with (
        running_prefill(PACED, budget_blocks=40, cache_blocks=40) as prefill,
        running_main(FAST) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        site = Site(prefill, main, main, to_prefill, to_main, to_main)
        await started(site, 1, ids)
        await started(site, 2, [*ids, *prompt(400, seed=2)])
        await to_prefill.until_released(2)
        failed = next(event.failed for event in to_prefill.told[2] if event.HasField("failed"))
        assert failed.code == prefill_pb2.PREFILL_ERROR_CODE_OVERLOADED
        await to_main.abort(2)
        await finished(site, 1, ids)
        await site.until_free()


async def test_a_request_can_be_started_again_for_another_target(paced: Site) -> None:
    ids, request = prompt(300), RequestId(5, 1)
    await paced.to_relay.admit(1, request, ids, greedy(OUTPUT), decode_on_commit=True)
    await paced.to_prefill.start(1, request, ids, greedy(OUTPUT), [paced.relay.target])
    await paced.to_main.admit(1, request, ids, greedy(OUTPUT))
    await paced.to_prefill.start(2, request, ids, greedy(OUTPUT), [paced.main.target])
    expected = continuation(ids, OUTPUT, ignore_eos=True)
    assert (await paced.to_relay.until_closed(1)).ids == expected[1:]
    await paced.to_main.extend(1, 0, expected[:4], then_decode=True)
    assert (await paced.to_main.until_closed(1)).ids == expected[4:]
    assert first_token(paced.to_prefill, 2).computed_tokens == len(ids) % BLOCK_TOKENS
    await paced.until_free()


# ── the links ──


async def test_the_load_tells_each_links_backlog_and_goodput(paced: Site) -> None:
    await answered(paced, 1, prompt(900))
    links = links_of(paced.to_prefill)
    assert {link.target for link in links} == {"main-0"}
    assert max(link.backlog_bytes for link in links) == 900 // BLOCK_TOKENS * paced.prefill.engine.layout.block_bytes
    await paced.to_prefill.until(lambda: loads(paced.to_prefill)[-1].links[0].backlog_bytes == 0)
    assert loads(paced.to_prefill)[-1].links[0].goodput_bytes_s > 0


async def test_a_transfer_that_makes_too_much_wait_for_its_link_is_dropped_and_the_other_targets_is_not() -> None:
    """Main's line is cut; what was made for it first stays, alone, and the next does not join the queue."""
    async with (
        running_prefill(FAST, cache_blocks=100, backlog_bytes=1) as prefill,
        running_relay(FAST) as relay,
        silent_receiver() as address,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(relay.address) as to_relay,
    ):
        for handle in (1, 2):
            request, ids = RequestId(5, handle), prompt(300, seed=handle)
            await to_relay.admit(handle, request, ids, greedy(OUTPUT), decode_on_commit=True)
            await to_prefill.start(handle, request, ids, greedy(OUTPUT), [relay.target, (Instance("main-0", 1), address)])
            await to_prefill.until_told(handle, "transfer_done")
            assert sent_blocks(to_prefill, handle) == {"relay-0": 300 // BLOCK_TOKENS}
        failed = (await to_prefill.until_told(2, "transfer_failed")).transfer_failed
        assert (failed.target, failed.reason) == ("main-0", kv_pb2.REFUSAL_REASON_BACKLOG)
        assert "PDD_BACKLOG_MB" in failed.message
        assert (await to_relay.until_closed(2)).ids == continuation(prompt(300, seed=2), OUTPUT, ignore_eos=True)[1:]
        assert "released" in await to_prefill.until_released(2)
        assert "transfer_failed" not in to_prefill.kinds(1)
        await to_prefill.abort(1)
        await to_prefill.until_released(1)
        await eventually(lambda: prefill.holds_nothing and relay.holds_nothing)


class NeverAcknowledges(kv_pb2_grpc.KvTransferServicer):
    """Wants everything, says nothing more, and answers a cancel."""

    async def Push(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[kv_pb2.PushRequest, kv_pb2.PushReply]
    ) -> None:
        await context.read()
        await context.write(kv_pb2.PushReply(want=kv_pb2.Want(credit_bytes=1 << 30)))
        while isinstance(message := await context.read(), kv_pb2.PushRequest) and not message.HasField("cancel"):
            pass
        await context.write(kv_pb2.PushReply(cancelled=kv_pb2.Cancelled()))


@asynccontextmanager
async def silent_receiver() -> AsyncIterator[str]:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        kv_pb2_grpc.add_KvTransferServicer_to_server(NeverAcknowledges(), server)
        return ("pdd.v1.KvTransfer",)

    async with serve("127.0.0.1:0", register) as server:
        yield server.address
