"""Prefill and relay on one kind of device, main on another: KV crosses exactly, and what main makes of it may be its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.engine.sim.digest import Noise
from pdd.engine.sim.model import SimConfig
from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from pdd.kv.layout import differences
from tests.mesh.services.conftest import running_site
from tests.mesh.services.instances import BLOCK_TOKENS, FAST, PACED, greedy, prompt

REQUEST = RequestId(5, 1)
NOISE = Noise(0.3, seed=11)


@pytest.mark.parametrize("tokens", [16, 31, 33, 150])
@pytest.mark.parametrize(
    "far",
    [
        pytest.param(replace(FAST, page_tokens=32, device_dtype="f32"), id="pages of two blocks, f32"),
        pytest.param(replace(FAST, page_tokens=24, device_dtype="f32"), id="pages of one and a half, f32"),
        pytest.param(replace(FAST, page_tokens=1), id="pages of one token"),
    ],
)
async def test_kv_on_another_device_continues_as_the_reference(far: SimConfig, tokens: int) -> None:
    ids, sampling = prompt(tokens), greedy(60)
    expected = continuation(ids, 60, ignore_eos=True)
    async with running_site(FAST, far) as site:
        layouts = site.prefill.engine.layout, site.main.engine.layout
        assert layouts[0] != layouts[1]
        assert differences(*layouts) == ()
        await site.to_main.admit(1, REQUEST, ids, sampling)
        await site.to_prefill.start(1, REQUEST, ids, sampling, [site.main.target])
        await site.to_main.extend(1, 0, expected[:10])
        await site.to_main.extend(1, 10, expected[10:25], then_decode=True, score=True)
        told = await site.to_main.until_closed(1)
        assert told.tokens == list(enumerate(expected))[25:]
        assert told.agreement == (14, 14)  # of the first extend nothing is scored, nor is the id after it
        assert sum(event.extended.computed_tokens for event in told.opening) == tokens % BLOCK_TOKENS + 25
        await site.until_free()


@pytest.mark.parametrize("tokens", [60, 64], ids=["tail", "no tail"])
async def test_the_log_goes_on_under_noise_what_was_shown_stands_and_the_rest_is_mains_own(tokens: int) -> None:
    ids, sampling = prompt(tokens), greedy(80)
    exact = continuation(ids, 80, ignore_eos=True)
    async with running_site(PACED, replace(PACED, noise=NOISE)) as site:
        await site.to_relay.admit(1, REQUEST, ids, sampling, decode_on_commit=True)
        await site.to_main.admit(1, REQUEST, ids, sampling)
        await site.to_prefill.start(1, REQUEST, ids, sampling, [site.relay.target, site.main.target])
        await site.to_relay.until(lambda: len(site.to_relay.told[1].tokens) >= 24)
        await site.to_relay.stop(1)
        relayed = await site.to_relay.until_closed(1)
        switch = relayed.closing[0].stopped.next_index
        shown = [exact[0], *relayed.ids]
        assert shown == exact[:switch]
        await site.to_main.extend(1, 0, shown[:10], score=True)
        await site.to_main.extend(1, 10, shown[10:], then_decode=True, score=True)
        told = await site.to_main.until_closed(1)
        await site.until_free()
    assert [index for index, _ in told.tokens] == list(range(switch, 80))
    assert told.ids == continuation([*ids, *shown], 80 - switch, ignore_eos=True, noise=NOISE) != exact[switch:]
    scored = range(0 if tokens % BLOCK_TOKENS else 1, switch)
    own = [continuation([*ids, *shown[:index]], 1, ignore_eos=True, noise=NOISE)[0] for index in scored]
    agreed = sum(token == shown[index] for token, index in zip(own, scored, strict=True))
    assert told.agreement == (len(scored), agreed)
    assert 0 < agreed < len(scored)
