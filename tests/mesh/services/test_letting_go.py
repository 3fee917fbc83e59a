"""Whatever ends a request, and whenever: in the end nothing is held for it in engine, store or receiver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from pdd.v1 import decode_pb2
from tests.eventually import eventually
from tests.mesh.services.conftest import Site
from tests.mesh.services.instances import greedy, prompt

REQUEST = RequestId(5, 1)
IDS = prompt(300)  # prefill takes 200 ms
EAGER = continuation(IDS, 3, ignore_eos=True)
Reach = Callable[[Site], Awaitable[None]]


async def _admit(site: Site) -> None:
    await site.to_relay.admit(1, REQUEST, IDS, greedy(500), decode_on_commit=True)
    await site.to_main.admit(1, REQUEST, IDS, greedy(500))


async def _start(site: Site) -> None:
    await _admit(site)
    await site.to_prefill.start(1, REQUEST, IDS, greedy(500), [site.relay.target, site.main.target])


async def admitted(site: Site) -> None:
    """The decoders expect KV that nobody sends."""
    await _admit(site)
    await site.to_prefill.start(1, RequestId(5, 2), IDS, greedy(500), [site.relay.target])


async def transferring(site: Site) -> None:
    """Memory is reserved, blocks arrive, prefill computes."""
    await _start(site)
    await site.to_main.extend(1, 0, EAGER, then_decode=True)
    await eventually(lambda: site.main.store.used_bytes > 0 and site.relay.store.used_bytes > 0)
    assert site.prefill.engine.load().queued_tokens > 0


async def whole(site: Site) -> None:
    """Main has the KV and no extend."""
    await _start(site)
    await site.to_main.until(lambda: site.to_main.told[1].kv_ready)


async def decoding(site: Site) -> None:
    """Both decode."""
    await _start(site)
    await site.to_main.extend(1, 0, EAGER, then_decode=True)
    await site.to_main.until(lambda: len(site.to_main.told[1].tokens) > 2)
    await site.to_relay.until(lambda: len(site.to_relay.told[1].tokens) > 2)


STAGES = [admitted, transferring, whole, decoding]


@pytest.mark.parametrize("reach", STAGES)
async def test_an_abort_frees_everything(paced: Site, reach: Reach) -> None:
    await reach(paced)
    await paced.to_prefill.abort(1)
    await paced.to_relay.abort(1)
    await paced.to_main.abort(1)
    # In mid-transfer prefill's own Cancel may come first: to a decoder that is the loss of its KV.
    either = ("aborted", "error") if reach is transferring else ("aborted",)
    assert (await paced.to_relay.until_closed(1)).ended in either
    assert (await paced.to_main.until_closed(1)).ended in either
    kinds = await paced.to_prefill.until_released(1)
    assert kinds[-1] == "released"
    await paced.until_free()
    await paced.to_main.until(lambda: paced.to_main.idle)


@pytest.mark.parametrize("reach", STAGES)
async def test_an_abort_of_main_alone_lets_the_relay_go_on(paced: Site, reach: Reach) -> None:
    if reach is admitted:
        return
    await reach(paced)
    await paced.to_main.abort(1)
    assert (await paced.to_main.until_closed(1)).ended == "aborted"
    seen = len(paced.to_relay.told[1].tokens)
    await paced.to_relay.until(lambda: len(paced.to_relay.told[1].tokens) > seen + 2)
    await eventually(lambda: paced.main.holds_nothing)


@pytest.mark.parametrize("reach", STAGES)
async def test_a_lost_gateway_frees_everything(paced: Site, reach: Reach) -> None:
    await reach(paced)
    for stream in (paced.to_prefill, paced.to_relay, paced.to_main):
        stream.call.cancel()
    await paced.until_free()


@pytest.mark.parametrize("reach", STAGES)
async def test_a_gateway_that_half_closes_is_taken_for_lost(paced: Site, reach: Reach) -> None:
    await reach(paced)
    for stream in (paced.to_prefill, paced.to_relay, paced.to_main):
        await stream.call.done_writing()
    await paced.until_free()


async def test_late_kv_for_an_aborted_handle_is_refused_and_not_kept(paced: Site) -> None:
    await _admit(paced)
    await paced.to_main.abort(1)
    await paced.to_main.until_closed(1)
    await paced.to_prefill.start(1, REQUEST, IDS, greedy(500), [paced.main.target])
    failed = (await paced.to_prefill.until_told(1, "transfer_failed")).transfer_failed
    assert "was cancelled" in failed.message
    await paced.to_relay.abort(1)
    await paced.until_free()


async def test_kv_that_never_comes_ends_the_handle_with_its_lease(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, IDS, greedy(5), lease_ms=50)
    told = await site.to_main.until_closed(1)
    assert told.error.message.startswith("LEASE_EXPIRED")
    await site.until_free()


async def test_whole_kv_that_nobody_extends_ends_with_its_lease(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, IDS, greedy(5), lease_ms=200)
    await site.to_prefill.start(1, REQUEST, IDS, greedy(5), [site.main.target])
    told = await site.to_main.until_closed(1)
    assert told.kv_ready
    assert told.error.code == decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED
    await site.until_free()


async def test_a_shutdown_aborts_what_runs(paced: Site) -> None:
    await decoding(paced)
    paced.main.decoder.close()
    await paced.to_main.until(lambda: paced.to_main.over)
    assert paced.to_main.error is not None
    assert "is shutting down" in str(paced.to_main.error.details())
    await eventually(lambda: paced.main.holds_nothing)
