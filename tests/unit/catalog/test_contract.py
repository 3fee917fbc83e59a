"""What every registry promises, whatever keeps its entries."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import IncompatibleInstance, Registry, Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.redis import RedisRegistry
from pdd.identity import Instance
from tests.unit.catalog.samples import LAYOUT, registration

LONG_S = 60.0
SHORT_S = 0.05

OTHER_MODEL = dataclasses.replace(LAYOUT, model_digest="other", layers=12)


class Backend(ABC):
    """A registry and a way to let a heartbeat run out."""

    registry: Registry

    @abstractmethod
    async def run_out(self, id: str) -> None:
        """Return once the entry of `id`, announced with SHORT_S, has run out."""


class Memory(Backend):
    def __init__(self) -> None:
        self.now_s = 0.0
        self.registry = MemoryRegistry(lambda: self.now_s)

    async def run_out(self, id: str) -> None:
        self.now_s += SHORT_S


class InRedis(Backend):
    def __init__(self, registry: RedisRegistry, client: Redis) -> None:
        self.registry = registry
        self._client = client

    async def run_out(self, id: str) -> None:
        async with asyncio.timeout(10):
            while await self._client.exists(f"pdd:instance:{id}"):  # noqa: ASYNC110
                await asyncio.sleep(SHORT_S / 10)


@pytest.fixture(params=["memory", "redis"])
async def backend(request: pytest.FixtureRequest, valkey_url: str) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield Memory()
        return
    async with Redis.from_url(valkey_url) as client, RedisRegistry(valkey_url) as registry:
        await client.flushall()
        yield InRedis(registry, client)


@pytest.fixture
def registry(backend: Backend) -> Registry:
    return backend.registry


async def ids(registry: Registry) -> list[str]:
    return [entry.instance.id for entry in await registry.instances()]


async def test_empty_registry_lists_nobody(registry: Registry) -> None:
    assert await registry.instances() == ()


async def test_announced_instance_is_listed_as_it_described_itself(registry: Registry) -> None:
    newcomer = registration(incarnation=2**64 - 1, load=0.25)
    await registry.announce(newcomer, LONG_S)
    assert await registry.instances() == (newcomer,)


async def test_renewal_updates_what_is_said(registry: Registry) -> None:
    await registry.announce(registration(load=0.0), LONG_S)
    await registry.announce(registration(load=0.5), LONG_S)
    assert [entry.load for entry in await registry.instances()] == [0.5]


async def test_instances_are_ordered_by_role_and_id(registry: Registry) -> None:
    for id, role in (("r-1", Role.RELAY), ("p-0", Role.PREFILL), ("m-2", Role.MAIN), ("r-0", Role.RELAY), ("m-10", Role.MAIN)):
        await registry.announce(registration(id, role=role), LONG_S)
    assert await ids(registry) == ["m-10", "m-2", "p-0", "r-0", "r-1"]


async def test_instance_whose_heartbeat_ran_out_is_gone(backend: Backend, registry: Registry) -> None:
    await registry.announce(registration("stays"), LONG_S)
    await registry.announce(registration("goes"), SHORT_S)
    await backend.run_out("goes")
    assert await ids(registry) == ["stays"]


async def test_instance_comes_back_after_its_heartbeat_ran_out(backend: Backend, registry: Registry) -> None:
    await registry.announce(registration(), SHORT_S)
    await backend.run_out("main-0")
    assert await ids(registry) == []
    await registry.announce(registration(), LONG_S)
    assert await ids(registry) == ["main-0"]


async def test_renewal_extends_the_heartbeat(backend: Backend, registry: Registry) -> None:
    await registry.announce(registration("renewed"), SHORT_S)
    await registry.announce(registration("renewed"), LONG_S)
    await registry.announce(registration("clock"), SHORT_S)
    await backend.run_out("clock")
    assert await ids(registry) == ["renewed"]


async def test_restarted_instance_replaces_its_predecessor_at_once(registry: Registry) -> None:
    await registry.announce(registration(incarnation=1), LONG_S)
    await registry.announce(registration(incarnation=2), LONG_S)
    assert [entry.instance for entry in await registry.instances()] == [Instance("main-0", 2)]


async def test_withdrawn_instance_is_gone(registry: Registry) -> None:
    await registry.announce(registration("stays"), LONG_S)
    await registry.announce(registration("goes"), LONG_S)
    await registry.withdraw(Instance("goes", 1))
    assert await ids(registry) == ["stays"]


async def test_withdrawing_does_not_touch_a_newer_incarnation(registry: Registry) -> None:
    await registry.announce(registration(incarnation=1), LONG_S)
    await registry.announce(registration(incarnation=2), LONG_S)
    await registry.withdraw(Instance("main-0", 1))
    assert [entry.instance.incarnation for entry in await registry.instances()] == [2]


async def test_withdrawing_a_stranger_does_nothing(registry: Registry) -> None:
    await registry.withdraw(Instance("nobody", 1))
    assert await registry.instances() == ()


async def test_incompatible_newcomer_is_refused_with_both_sides_named(registry: Registry) -> None:
    present = registration("relay-0", role=Role.RELAY)
    await registry.announce(present, LONG_S)
    with pytest.raises(IncompatibleInstance) as error:
        await registry.announce(registration("main-1", layout=OTHER_MODEL), LONG_S)
    for word in ("main-1", "relay-0", "model_digest", "layers: 12 against 24"):
        assert word in str(error.value)
    assert await registry.instances() == (present,)


async def test_instances_that_differ_in_kind_alone_join_each_other(registry: Registry) -> None:
    await registry.announce(registration("a"), LONG_S)
    foreign = dataclasses.replace(LAYOUT, engine="sim", page_tokens=32, device_dtype="bf16", tensor_parallel=8)
    await registry.announce(registration("b", layout=foreign), LONG_S)
    assert await ids(registry) == ["a", "b"]


async def test_instance_may_return_with_another_model_where_it_is_alone(registry: Registry) -> None:
    await registry.announce(registration(incarnation=1), LONG_S)
    await registry.announce(registration(incarnation=2, layout=OTHER_MODEL), LONG_S)
    assert [entry.layout for entry in await registry.instances()] == [OTHER_MODEL]


async def test_incompatible_instance_joins_once_the_others_are_gone(backend: Backend, registry: Registry) -> None:
    await registry.announce(registration("old"), SHORT_S)
    await backend.run_out("old")
    await registry.announce(registration("new", layout=OTHER_MODEL), LONG_S)
    assert await ids(registry) == ["new"]


async def test_instance_whose_place_was_taken_meanwhile_is_refused(backend: Backend, registry: Registry) -> None:
    await registry.announce(registration("late"), SHORT_S)
    await backend.run_out("late")
    await registry.announce(registration("new", layout=OTHER_MODEL), LONG_S)
    with pytest.raises(IncompatibleInstance, match=r"late.*new"):
        await registry.announce(registration("late"), LONG_S)
