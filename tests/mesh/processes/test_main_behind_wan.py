"""A real main behind a real WAN relay: it is reached through the port it leased there, also after the relay has restarted."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest

from pdd.catalog.base import Registration, Role
from pdd.catalog.embedded import embedded_valkey
from pdd.cli.ports import claim
from pdd.identity import RequestId
from tests.eventually import POLL_S
from tests.mesh.processes.services import registered, running_service
from tests.mesh.services.gateways import attached_decoder
from tests.mesh.services.instances import greedy, prompt
from tests.support.process import DEADLINE_S, running_module

pytestmark = pytest.mark.processes


async def test_main_advertises_its_leased_port_and_is_reached_through_it() -> None:
    control = claim("127.0.0.1:0")
    wan = {"PDD_WAN_CONTROL_LISTEN": control, "PDD_WAN_FORWARD_HOST": "127.0.0.1", "PDD_WAN_RTT_MS": "10"}
    async with (
        running_module("wan", wan),
        embedded_valkey() as redis_url,
        running_service(Role.MAIN, redis_url, PDD_WAN_CONTROL=f"http://{control}"),
    ):
        main = (await registered(redis_url, 1))[Role.MAIN]
        async with attached_decoder(main.address) as stream:
            assert getattr(stream.frames[0].hello, "from").id == main.instance.id
            await stream.admit(1, RequestId(5, 1), prompt(20), greedy(5))
            await stream.abort(1)
            assert (await stream.until_closed(1)).ended == "aborted"
        async with aiohttp.ClientSession() as session, session.get(f"http://{control}/counters") as response:
            (forward,) = (await response.json())["forwards"]
        assert forward["name"] == "main-0"
        assert min(forward["a_to_b_bytes"], forward["b_to_a_bytes"]) > 0


async def moved(redis_url: str, before: Registration) -> Registration:
    """Main's registration, once it names another address. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while (now := (await registered(redis_url, 1))[Role.MAIN]).address == before.address:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return now


async def test_main_is_reached_again_after_the_relay_has_restarted() -> None:
    control = claim("127.0.0.1:0")
    wan = {"PDD_WAN_CONTROL_LISTEN": control, "PDD_WAN_FORWARD_HOST": "127.0.0.1"}
    async with (
        embedded_valkey() as redis_url,
        running_module("wan", wan) as first,
        running_service(Role.MAIN, redis_url, PDD_WAN_CONTROL=f"http://{control}") as process,
    ):
        before = (await registered(redis_url, 1))[Role.MAIN]
        first.signal(signal.SIGKILL)
        await first.end()
        await process.until("can't be renewed")
        async with running_module("wan", wan):
            after = await moved(redis_url, before)
            assert after.instance == before.instance
            async with attached_decoder(after.address) as stream:
                assert getattr(stream.frames[0].hello, "from") == before.instance.to_proto()
