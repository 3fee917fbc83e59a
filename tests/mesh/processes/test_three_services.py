"""The three services as real processes: they find each other, carry a request, and stop when told."""

from __future__ import annotations

import signal

import pytest

from pdd.catalog.base import Role
from pdd.catalog.embedded import embedded_valkey
from pdd.catalog.redis import RedisRegistry
from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from tests.mesh.processes.services import registered, running_service
from tests.mesh.services.gateways import attached_decoder, attached_prefill
from tests.mesh.services.instances import greedy, prompt

pytestmark = pytest.mark.processes

REQUEST = RequestId(5, 1)


async def test_a_request_crosses_three_processes_which_then_stop_in_good_order() -> None:
    ids, expected = prompt(300), continuation(prompt(300), 60, ignore_eos=True)
    async with (
        embedded_valkey() as redis_url,
        running_service(Role.PREFILL, redis_url) as prefill,
        running_service(Role.RELAY, redis_url) as relay,
        running_service(Role.MAIN, redis_url) as main,
    ):
        found = await registered(redis_url, 3)
        targets = [(found[role].instance, found[role].address) for role in (Role.RELAY, Role.MAIN)]
        async with (
            attached_prefill(found[Role.PREFILL].address) as to_prefill,
            attached_decoder(found[Role.RELAY].address) as to_relay,
            attached_decoder(found[Role.MAIN].address) as to_main,
        ):
            await to_relay.admit(1, REQUEST, ids, greedy(60), decode_on_commit=True)
            await to_main.admit(1, REQUEST, ids, greedy(60))
            await to_prefill.start(1, REQUEST, ids, greedy(60), targets)
            await to_main.extend(1, 0, expected[:20], then_decode=True)
            assert (await to_relay.until_closed(1)).ids == expected[1:]
            assert (await to_main.until_closed(1)).ids == expected[20:]
            await to_prefill.until_released(1)
            for process in (prefill, relay, main):
                process.signal(signal.SIGTERM)
            await to_relay.until(lambda: to_relay.over)
            await to_main.until(lambda: to_main.over)
            for process in (prefill, relay, main):
                code, said = await process.end()
                assert code == 0, said
                assert "Traceback" not in said
        async with RedisRegistry(redis_url) as registry:
            assert await registry.instances() == ()


@pytest.mark.parametrize("role", list(Role))
async def test_settings_that_are_wrong_end_the_process_with_a_line_that_names_them(role: Role) -> None:
    async with running_service(role, "redis://127.0.0.1:1/0", PDD_KV_BUDGET_MB="none") as process:
        code, said = await process.end()
    assert code == 2
    assert "PDD_KV_BUDGET_MB" in said
    assert "Traceback" not in said


async def test_an_engine_that_cannot_start_says_what_to_do() -> None:
    async with running_service(Role.MAIN, "redis://127.0.0.1:1/0", PDD_SIM_PROFILE="abacus") as process:
        code, said = await process.end()
    assert code == 1
    assert "PDD_SIM_PROFILE" in said
    assert "Traceback" not in said
