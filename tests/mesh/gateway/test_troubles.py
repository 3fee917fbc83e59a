"""Instances that go, come back or are replaced, and a registry that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from gateway.generation import MeshError, MeshErrorCode, Tokens
from gateway.mesh.mesh import Mesh
from pdd.catalog.base import Registration, Registry, RegistryUnavailable, Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance
from tests.eventually import eventually
from tests.mesh.gateway.asking import GATEWAY, Observed, mesh_settings, spec
from tests.mesh.gateway.site import PACED, TTL_S, Site, collect, running_site
from tests.mesh.services.instances import FAST
from tests.mesh.virtual.alone import alone
from wan.link import LinkSettings, Outage


async def broken_when(site: Site, source: str, break_it: Callable[[], Awaitable[None]]) -> MeshError:
    """Run a long request, break something when `source` has made a token, and return how the request ended."""
    broken = False
    try:
        async with asyncio.timeout(30), site.mesh.generate(spec(max_tokens=2000)) as generation:
            async for item in generation:
                if isinstance(item, Tokens) and item.source == source and not broken:
                    broken = True
                    await break_it()
    except MeshError as error:
        return error
    raise AssertionError("nothing happened")


@pytest.mark.parametrize(("role", "source"), [("relay", "prefill-0"), ("relay", "relay-0"), ("main", "main-0")])
async def test_a_lost_decoder_ends_its_requests_and_frees_the_others(role: str, source: str) -> None:
    async with running_site(handoff="one_shot") as site:
        gone = site.relays[0] if role == "relay" else site.mains[0]

        async def leave() -> None:
            gone.decoder.close()

        error = await broken_when(site, source, leave)
        # While its KV is on its way, prefill may be the first to tell.
        assert error.code is MeshErrorCode.PEER_LOST or (source != "main-0" and error.code is MeshErrorCode.KV_REFUSED)
        assert str(error).startswith(f"{role} {role}-0: ")
        await site.until_free()


@pytest.mark.parametrize("gone", ["main", "prefill"])
async def test_a_relay_goes_on_to_the_end_when_mains_kv_cannot_come_any_more(gone: str) -> None:
    slow = LinkSettings(rate_mbit=1)  # the KV takes longer than the answer
    async with running_site(handoff="one_shot", line=slow) as site:
        tokens: list[int] = []
        sources: set[str] = set()
        async with asyncio.timeout(30), site.mesh.generate(spec()) as generation:
            async for item in generation:
                if not isinstance(item, Tokens):
                    assert item.timeline.handoff == ""
                    break
                if item.source == "relay-0" and "relay-0" not in sources:
                    (site.mains[0].decoder if gone == "main" else site.prefill.worker).close()
                tokens += item.tokens
                sources.add(item.source)
        assert tuple(tokens) == alone(spec().prompt, spec().sampling).tokens
        assert sources == {"prefill-0", "relay-0"}
        await site.until_free()


async def test_a_lost_prefill_ends_a_request_that_has_no_token_yet() -> None:
    async with running_site() as site:
        async with site.mesh.generate(spec(4000)) as generation:
            site.prefill.worker.close()
            with pytest.raises(MeshError) as raised:
                await anext(aiter(generation))
        assert raised.value.code is MeshErrorCode.PEER_LOST
        await site.until_free()


async def test_a_line_that_breaks_ends_the_request_and_the_next_one_waits_for_nobody() -> None:
    async with running_site(handoff="one_shot") as site:

        async def cut() -> None:
            await site.line.configure(LinkSettings(outage=Outage.REFUSE))
            await site.line.configure(LinkSettings(outage=Outage.RESET))

        error = await broken_when(site, "main-0", cut)
        assert error.code is MeshErrorCode.PEER_LOST
        await eventually(lambda: site.mesh.missing_roles() == ("main",))
        with pytest.raises(MeshError, match="no main instance is connected"):
            async with site.mesh.generate(spec()):
                pass
        await site.until_free()
        await site.line.configure(LinkSettings())
        await eventually(lambda: site.mesh.missing_roles() == ())
        assert len((await collect(site.mesh, spec())).tokens) > 0


async def test_a_restarted_instance_gets_a_new_stream_and_the_old_one_ends() -> None:
    async with running_site(FAST) as site:
        (listed,) = [one for one in await site.registry.instances() if one.role is Role.RELAY]
        restarted = replace(listed, instance=Instance("relay-0", 2), address="127.0.0.1:9")
        await site.registry.announce(restarted, TTL_S)
        await eventually(lambda: site.mesh.missing_roles() == ("relay",))
        await site.registry.announce(listed, TTL_S)
        await eventually(lambda: site.mesh.missing_roles() == ())
        await collect(site.mesh, spec())


async def test_an_instance_that_is_not_whom_the_registry_says_gets_no_requests() -> None:
    async with running_site(FAST) as site:
        (listed,) = [one for one in await site.registry.instances() if one.role is Role.RELAY]
        await site.registry.announce(replace(listed, instance=Instance("relay-0", 2)), TTL_S)
        await eventually(lambda: site.mesh.missing_roles() == ("relay",))


async def test_an_instance_that_has_withdrawn_gets_no_requests_and_finishes_those_it_has() -> None:
    async with running_site(absence_grace_s=0.0) as site, site.mesh.generate(spec(max_tokens=100)) as generation:
        (listed,) = [one for one in await site.registry.instances() if one.role is Role.MAIN]
        await site.registry.withdraw(listed.instance)
        await eventually(lambda: site.mesh.missing_roles() == ("main",))
        assert sum([len(item.tokens) async for item in generation if isinstance(item, Tokens)]) == 100


class Flaky(Registry):
    """A registry that can be away."""

    def __init__(self, behind: MemoryRegistry) -> None:
        self.behind = behind
        self.away = False
        self.asked = 0

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        await self.behind.announce(registration, ttl_s)

    async def withdraw(self, instance: Instance) -> None:
        await self.behind.withdraw(instance)

    async def instances(self) -> Sequence[Registration]:  # type: ignore[override]
        self.asked += 1
        if self.away:
            raise RegistryUnavailable("registry 127.0.0.1:1 is away")
        return await self.behind.instances()


async def test_a_registry_that_is_away_changes_nothing() -> None:
    async with running_site(FAST) as site:
        flaky = Flaky(site.registry)
        async with Mesh(
            mesh_settings(absence_grace_s=0.0), flaky, MemoryPrefixCatalog(site.registry), sim_card(8192), gateway=GATEWAY
        ) as mesh:
            await eventually(lambda: mesh.missing_roles() == ())
            flaky.away = True
            asked = flaky.asked
            await eventually(lambda: flaky.asked > asked + 3)
            assert len((await collect(mesh, spec())).tokens) > 0


async def test_an_instance_of_another_model_is_left_alone() -> None:
    async with running_site(FAST) as site:
        observed = Observed()
        card = replace(sim_card(8192), model_digest="another")
        async with Mesh(
            mesh_settings(), site.registry, MemoryPrefixCatalog(site.registry), card, gateway=GATEWAY, observer=observed
        ) as mesh:
            assert mesh.missing_roles() == ("prefill", "relay", "main")
        assert observed.connected == {}


async def test_a_gateway_that_leaves_frees_what_its_requests_held() -> None:
    async with running_site(PACED) as site:
        async with Mesh(
            mesh_settings(),
            site.registry,
            MemoryPrefixCatalog(site.registry),
            sim_card(8192),
            gateway=replace(GATEWAY, incarnation=78),
        ) as other:
            await eventually(lambda: other.missing_roles() == ())
            request = other.generate(spec(max_tokens=2000))
            generation = await request.__aenter__()
            await anext(aiter(generation))
        with pytest.raises(MeshError, match="the gateway closed the stream"):
            async for _ in generation:
                pass
        await request.__aexit__(None, None, None)
        await site.until_free()
