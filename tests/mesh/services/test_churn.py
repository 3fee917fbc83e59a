"""Many requests beside each other, some of them aborted at any time: those that finish are exact, and nothing stays behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from tests.mesh.services.conftest import Site
from tests.mesh.services.instances import greedy, prompt

REQUESTS = 24
MAX_TOKENS = 30


async def run_one(site: Site, number: int, draw: random.Random) -> bool:
    """One request on relay and main; whether it was aborted."""
    ids = prompt(draw.randint(1, 200), number)
    expected = continuation(ids, MAX_TOKENS, ignore_eos=True)
    eager, aborted = draw.randint(1, 15), draw.random() < 0.4
    request, sampling = RequestId(5, number), greedy(MAX_TOKENS)
    await site.to_relay.admit(number, request, ids, sampling, decode_on_commit=True)
    await site.to_main.admit(number, request, ids, sampling)
    await site.to_prefill.start(number, request, ids, sampling, [site.relay.target, site.main.target])
    await site.to_main.extend(number, 0, expected[:eager], then_decode=True)
    relay, main = site.to_relay.told[number], site.to_main.told[number]
    if aborted:
        enough = draw.randint(0, 10)
        await site.to_relay.until(lambda: len(relay.tokens) >= enough or bool(relay.closing))
        for stream in (site.to_prefill, site.to_relay, site.to_main):
            await stream.abort(number)
    await site.to_relay.until_closed(number)
    await site.to_main.until_closed(number)
    await site.to_prefill.until_released(number)
    assert relay.ids == expected[1 : 1 + len(relay.ids)]
    assert main.ids == expected[eager : eager + len(main.ids)]
    if not aborted:
        assert (len(relay.ids), len(main.ids)) == (MAX_TOKENS - 1, MAX_TOKENS - eager)
    return aborted


@pytest.mark.parametrize("seed", range(3))
async def test_requests_that_come_and_go_leave_nothing_and_disturb_nobody(site: Site, seed: int) -> None:
    draws = [random.Random(f"{seed}-{number}") for number in range(1, REQUESTS + 1)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_one(site, number, draw)) for number, draw in enumerate(draws, start=1)]
    assert 0 < sum(task.result() for task in tasks) < REQUESTS
    await site.until_free()
    await site.to_main.until(lambda: site.to_main.idle)
    await site.to_relay.until(lambda: site.to_relay.idle)
