"""Publishers, a catalog and a follower together: whatever happens, the index comes to show what the living hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.catalog.base import Registration
from pdd.catalog.embedded import embedded_valkey
from pdd.catalog.follower import CatalogFollower, FollowerRules, following
from pdd.catalog.publisher import PublisherRules, publishing
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.identity import Instance
from tests.eventually import eventually
from tests.unit.catalog.caches import FakeCache
from tests.unit.catalog.meshes import Members, members, shown
from tests.unit.catalog.samples import registration
from virtual.clock import run

PUBLISHERS = 16
UNIVERSE = range(40)
RULES = PublisherRules(ttl_s=6.0, batch_hashes=4, max_pending=12)
MAX_EVENTS = 8
QUIET_S = 8.0


@dataclass(frozen=True)
class Change:
    number: int
    is_added: bool
    hashes: tuple[int, ...]

    async def do(self, there: Members) -> None:
        member = there.living.get(f"main-{self.number}")
        if member is not None:
            (member.cache.add if self.is_added else member.cache.remove)(self.hashes)


@dataclass(frozen=True)
class Restart:
    number: int
    held: tuple[int, ...]

    async def do(self, there: Members) -> None:
        id = f"main-{self.number}"
        was = there.living[id].instance.incarnation
        await there.leave(id)
        await there.join(id, was + 1, FakeCache(self.held))


@dataclass(frozen=True)
class Outage:
    is_away: bool

    async def do(self, there: Members) -> None:
        there.catalog.away = self.is_away


@dataclass(frozen=True)
class LostAnswers:
    lost: bool

    async def do(self, there: Members) -> None:
        there.catalog.loses_answers = self.lost


@dataclass(frozen=True)
class Flush:
    async def do(self, there: Members) -> None:
        there.memory.flush()


@dataclass(frozen=True)
class Pause:
    seconds: float

    async def do(self, there: Members) -> None:
        await there.beat_for(self.seconds)


NUMBERS = st.integers(0, PUBLISHERS - 1)
HASHES = st.lists(st.sampled_from(UNIVERSE), min_size=1, max_size=8, unique=True).map(tuple)
CHANGE = st.builds(Change, NUMBERS, st.booleans(), HASHES)
PAUSE = st.builds(Pause, st.sampled_from([0.01, 0.1, 0.5, 3.0, 7.0]))
TROUBLE = st.one_of(
    st.builds(Restart, NUMBERS, HASHES),
    st.builds(Outage, st.booleans()),
    st.builds(LostAnswers, st.booleans()),
    st.just(Flush()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(CHANGE, CHANGE, CHANGE, PAUSE, TROUBLE), max_size=40), st.integers(0, 2**32))
def test_index_is_the_union_of_what_sixteen_publishers_hold(
    steps: list[Change | Restart | Outage | LostAnswers | Flush | Pause], seed: int
) -> None:
    async def main() -> None:
        async with members(RULES, MAX_EVENTS) as there:
            for number in range(PUBLISHERS):
                await there.join(f"main-{number}", cache=FakeCache([number]))
            async with following(there.catalog, lambda: there.listed) as follower:
                for step in steps:
                    await step.do(there)
                there.catalog.away = there.catalog.loses_answers = False
                await there.beat_for(QUIET_S)
                assert_in_step(there, follower)

    run(main, seed=seed)


def assert_in_step(there: Members, follower: CatalogFollower) -> None:
    assert follower.reason is None
    for member in there.living.values():
        assert member.publisher.reason is None
        assert shown(follower, member.instance, UNIVERSE) == member.cache.hashes()
    assert set(follower.index.states) == {member.instance for member in there.living.values()}


async def test_real_server_that_is_away_flushed_and_restarted_is_survived() -> None:
    rules = PublisherRules(interval_s=0.01, renew_s=0.05, retry_s=0.02)
    caches = {Instance(f"main-{number}", 1): FakeCache(range(number, 2000 * number, 3)) for number in range(1, 4)}
    async with AsyncExitStack() as stack:
        async with embedded_valkey() as url:
            port = int(url.rpartition(":")[2].partition("/")[0])
            publishers = {}
            for instance, cache in caches.items():
                own = await stack.enter_async_context(RedisPrefixCatalog(url))
                publishers[instance] = await stack.enter_async_context(publishing(own, instance, cache, rules))

            def listed() -> list[Registration]:
                return [
                    dataclasses.replace(registration(one.id), cached=publisher.state) for one, publisher in publishers.items()
                ]

            catalog = await stack.enter_async_context(RedisPrefixCatalog(url))
            follower = await stack.enter_async_context(following(catalog, listed, FollowerRules(wait_s=0.05, retry_s=0.02)))
            in_step = _in_step(follower, caches)
            await eventually(in_step)
            caches[Instance("main-1", 1)].add([2**64 - 1])
            await eventually(in_step)
            await catalog._server.call(lambda client: client.flushall())
            await eventually(lambda: follower.counts.lost_streams > 0)
            await eventually(in_step)
        await eventually(lambda: not follower.synced and not any(one.synced for one in publishers.values()))
        caches[Instance("main-2", 1)].add([2**64 - 2])
        caches[Instance("main-3", 1)].remove([3])
        async with embedded_valkey(port):
            await eventually(lambda: in_step() and all(one.synced for one in publishers.values()))
            await stack.aclose()


def _in_step(follower: CatalogFollower, caches: dict[Instance, FakeCache]) -> Callable[[], bool]:
    def in_step() -> bool:
        entries = follower.index._entries
        return follower.synced and all(entries[one].hashes == cache.hashes() for one, cache in caches.items())

    return in_step
