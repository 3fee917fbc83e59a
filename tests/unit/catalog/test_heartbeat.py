from __future__ import annotations

import asyncio
import dataclasses

import pytest
from structlog.testing import capture_logs

from pdd.catalog.base import IncompatibleInstance, Registration, RegistryUnavailable
from pdd.catalog.heartbeat import heartbeat
from pdd.catalog.memory import MemoryRegistry
from pdd.identity import Instance
from tests.eventually import eventually
from tests.unit.catalog.samples import LAYOUT, registration

TTL_S = 0.03
LONG_S = 60.0

STRANGER = registration("stranger", layout=dataclasses.replace(LAYOUT, layers=12))


class WatchedRegistry(MemoryRegistry):
    """Counts what it is asked, and can be away."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.away = False
        self.announced: list[Registration] = []
        self.attempts = 0

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        self.attempts += 1
        self._check()
        await super().announce(registration, ttl_s)
        self.announced.append(registration)

    async def withdraw(self, instance: Instance) -> None:
        self._check()
        await super().withdraw(instance)

    def _check(self) -> None:
        if self.away:
            raise RegistryUnavailable("registry at redis://nowhere:1 can't be used")


@pytest.fixture
def registry() -> WatchedRegistry:
    return WatchedRegistry()


async def test_instance_is_listed_from_entering_to_leaving(registry: WatchedRegistry) -> None:
    async with heartbeat(registry, registration, LONG_S):
        assert await registry.instances() == (registration(),)
    assert await registry.instances() == ()


async def test_it_beats_on_and_says_the_load_of_the_moment(registry: WatchedRegistry) -> None:
    load = iter(range(1000))
    async with heartbeat(registry, lambda: registration(load=float(next(load))), TTL_S):
        await eventually(lambda: len(registry.announced) >= 4)
    assert [entry.load for entry in registry.announced[:4]] == [0, 1, 2, 3]


async def test_outage_is_survived_and_logged_once(registry: WatchedRegistry) -> None:
    with capture_logs() as logs:
        async with heartbeat(registry, registration, TTL_S):
            registry.away, before = True, registry.attempts
            await eventually(lambda: registry.attempts >= before + 3)
            registry.away, before = False, len(registry.announced)
            await eventually(lambda: len(registry.announced) > before)
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [
        ("warning", "registry is away, trying on"),
        ("info", "registry is back"),
    ]


async def test_registry_may_be_away_at_the_start_and_at_the_end(registry: WatchedRegistry) -> None:
    registry.away = True
    async with heartbeat(registry, registration, TTL_S):
        registry.away = False
        await eventually(lambda: bool(registry.announced))
        registry.away = True


async def test_refusal_at_the_start_is_raised_with_both_sides_named(registry: WatchedRegistry) -> None:
    await registry.announce(STRANGER, LONG_S)
    with pytest.raises(IncompatibleInstance, match=r"main-0.*stranger"):
        async with heartbeat(registry, registration, TTL_S):
            pytest.fail("the body must not run")


async def refused_later(registry: WatchedRegistry) -> None:
    """Bring about what an outage can: the entry has run out and someone else has joined."""
    await registry.withdraw(registration().instance)
    await registry.announce(STRANGER, LONG_S)


async def test_later_refusal_is_told_once_and_ends_the_beat(registry: WatchedRegistry) -> None:
    told: list[IncompatibleInstance] = []
    refused = asyncio.Event()

    def on_refused(error: IncompatibleInstance) -> None:
        told.append(error)
        refused.set()

    async with heartbeat(registry, registration, TTL_S, on_refused):
        await refused_later(registry)
        await refused.wait()
    assert len(told) == 1
    assert "stranger" in str(told[0])
    assert await registry.instances() == (STRANGER,)


async def test_later_refusal_without_a_listener_cancels_the_body_and_is_raised(registry: WatchedRegistry) -> None:
    async def service() -> None:
        async with heartbeat(registry, registration, TTL_S):
            await refused_later(registry)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as error:
        await service()
    assert error.group_contains(IncompatibleInstance, match="stranger")
