"""A request over real gRPC: what relay and main decode from prefill's KV is the reference text, however the handoff is cut."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from pdd.v1 import sampling_pb2
from tests.mesh.services.conftest import Site
from tests.mesh.services.instances import BLOCK_TOKENS, greedy, prompt

REQUEST = RequestId(5, 1)


@pytest.mark.parametrize("tokens", [1, 15, 16, 150])
async def test_the_relay_decodes_from_the_commit(site: Site, tokens: int) -> None:
    ids, sampling = prompt(tokens), greedy(30)
    expected = continuation(ids, 30, ignore_eos=True)
    await site.to_relay.admit(1, REQUEST, ids, sampling, decode_on_commit=True)
    await site.to_prefill.start(1, REQUEST, ids, sampling, [site.relay.target])
    told = await site.to_relay.until_closed(1)
    first = (await site.to_prefill.until_told(1, "first_token")).first_token
    assert first.token == expected[0]
    assert told.tokens == list(enumerate(expected))[1:]
    assert (told.ended, told.closing[0].finished.next_index) == ("finished", 30)
    assert told.closing[0].finished.reason == sampling_pb2.FINISH_REASON_LENGTH
    assert told.extended_to == [1]
    await site.to_prefill.until_released(1)
    await site.until_free()


@pytest.mark.parametrize("seed", range(4))
async def test_main_continues_however_the_log_is_cut_into_extends(site: Site, seed: int) -> None:
    ids, sampling, split = prompt(150, seed), greedy(40), random.Random(seed)
    expected = continuation(ids, 40, ignore_eos=True)
    eager = split.randint(2, 25)
    cuts = [0, *sorted(split.sample(range(1, eager), min(3, eager - 1))), eager]
    await site.to_main.admit(1, REQUEST, ids, sampling)
    # Some come before the KV, and some after it.
    early = split.randint(0, len(cuts) - 1)
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        if number == early:
            await site.to_prefill.start(1, REQUEST, ids, sampling, [site.main.target])
            await site.to_main.until(lambda: site.to_main.told[1].kv_ready)
        await site.to_main.extend(1, start, expected[start:end], then_decode=end == eager)
    if early == len(cuts) - 1:
        await site.to_prefill.start(1, REQUEST, ids, sampling, [site.main.target])
    told = await site.to_main.until_closed(1)
    assert told.tokens == list(enumerate(expected))[eager:]
    assert told.extended_to == cuts[1:]
    computed = sum(event.extended.computed_tokens for event in told.opening)
    assert computed == len(ids) % BLOCK_TOKENS + eager
    await site.until_free()


async def test_both_targets_get_every_block_once(site: Site) -> None:
    ids, sampling = prompt(150), greedy(10)
    expected = continuation(ids, 10, ignore_eos=True)
    await site.to_relay.admit(1, REQUEST, ids, sampling, decode_on_commit=True)
    await site.to_main.admit(1, REQUEST, ids, sampling)
    await site.to_prefill.start(1, REQUEST, ids, sampling, [site.relay.target, site.main.target])
    kinds = await site.to_prefill.until_released(1)
    assert sorted(kinds[:-1]) == ["first_token", "transfer_done", "transfer_done", "wanted", "wanted"]
    done = [event.transfer_done for event in site.to_prefill.told[1] if event.HasField("transfer_done")]
    block_bytes = site.prefill.engine.layout.block_bytes
    assert {(event.target, event.blocks, event.bytes) for event in done} == {
        ("relay-0", 9, 9 * block_bytes),
        ("main-0", 9, 9 * block_bytes),
    }
    await site.to_main.extend(1, 0, expected[:1], then_decode=True)
    assert (await site.to_main.until_closed(1)).ids == expected[1:]
    assert (await site.to_relay.until_closed(1)).ids == expected[1:]
    wanted = site.to_main.told[1].opening[0].wanted
    assert (wanted.missing_blocks, wanted.missing_bytes) == (9, 9 * block_bytes)
    await site.until_free()


async def test_index_0_that_is_the_last_token_opens_no_decoder(site: Site) -> None:
    ids, sampling = prompt(40), greedy(1)
    await site.to_main.admit(1, REQUEST, ids, sampling)
    await site.to_prefill.start(1, REQUEST, ids, sampling, [site.main.target])
    first = (await site.to_prefill.until_told(1, "first_token")).first_token
    assert first.finish == sampling_pb2.FINISH_REASON_LENGTH
    await site.to_main.until(lambda: site.to_main.told[1].kv_ready)
    assert site.to_main.told[1].closing == []
    await site.to_main.abort(1)
    told = await site.to_main.until_closed(1)
    assert (told.ended, told.tokens) == ("aborted", [])
    await site.until_free()


async def test_a_stopped_relay_says_where_and_main_goes_on_from_there(paced: Site) -> None:
    ids, sampling = prompt(60), greedy(60)
    expected = continuation(ids, 60, ignore_eos=True)
    await paced.to_relay.admit(1, REQUEST, ids, sampling, decode_on_commit=True)
    await paced.to_main.admit(1, REQUEST, ids, sampling)
    await paced.to_prefill.start(1, REQUEST, ids, sampling, [paced.relay.target, paced.main.target])
    await paced.to_relay.until(lambda: len(paced.to_relay.told[1].tokens) >= 5)
    await paced.to_relay.stop(1)
    relayed = await paced.to_relay.until_closed(1)
    switch = relayed.closing[0].stopped.next_index
    assert relayed.tokens == list(enumerate(expected))[1:switch]
    await paced.to_main.extend(1, 0, expected[:switch], then_decode=True)
    assert (await paced.to_main.until_closed(1)).tokens == list(enumerate(expected))[switch:]
    await paced.until_free()


async def test_logprobs_travel_beside_their_tokens(site: Site) -> None:
    ids, sampling = prompt(20), greedy(5)
    asked = replace(sampling, top_logprobs=2)
    await site.to_relay.admit(1, REQUEST, ids, asked, decode_on_commit=True)
    await site.to_relay.admit(2, RequestId(5, 2), ids, sampling, decode_on_commit=True)
    await site.to_prefill.start(1, REQUEST, ids, asked, [site.relay.target])
    await site.to_prefill.start(2, RequestId(5, 2), ids, sampling, [site.relay.target])
    await site.to_relay.until_closed(1)
    await site.to_relay.until_closed(2)
    for frame in site.to_relay.frames:
        with_logprobs = {frame.handle[position] for position in frame.logprobs_of}
        assert with_logprobs <= {1}
        assert len(frame.logprobs) == sum(handle == 1 for handle in frame.handle)
        for position, logprobs in zip(frame.logprobs_of, frame.logprobs, strict=True):
            assert logprobs.top_tokens[0] == frame.token[position]
