from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest
from redis.asyncio import Redis

from pdd.catalog.base import RegistryUnavailable
from pdd.catalog.prefixes import CacheEvent, CacheSnapshot, CacheState
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import PART_HASHES, RedisPrefixCatalog
from pdd.identity import Instance
from tests.unit.catalog.caches import batch, snapshot
from tests.unit.catalog.samples import registration

LONG_S = 60.0
WAIT_S = 0.01
BLOCKS = 4096  # of a prompt of 64K tokens
INSTANCES = [Instance(f"main-{number}", 2**64 - 1 - number) for number in range(16)]
MAIN = INSTANCES[0]


@pytest.fixture
async def client(valkey_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey_url) as opened:
        await opened.flushall()
        await opened.script_flush()
        yield opened


@pytest.fixture
async def catalog(valkey_url: str, client: Redis) -> AsyncIterator[RedisPrefixCatalog]:
    async with RedisPrefixCatalog(valkey_url) as opened:
        yield opened


async def commands(client: Redis) -> dict[str, int]:
    """What clients have sent since the statistics began, and what the script of `longest` calls left out."""
    stats = await client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}
    return {name: number for name, number in calls.items() if name not in ("config|resetstat", "getrange", "sismember")}


async def announce_all(url: str) -> None:
    async with RedisRegistry(url) as registry:
        for one in INSTANCES:
            await registry.announce(registration(one.id, one.incarnation), LONG_S)


async def test_longest_of_a_64k_prompt_over_16_instances_takes_one_round_trip_and_two_the_first_time(
    valkey_url: str, client: Redis, catalog: RedisPrefixCatalog
) -> None:
    await announce_all(valkey_url)
    draw = Random(1)
    chain = [draw.getrandbits(64) for _ in range(BLOCKS)]
    expected = {one: draw.randint(0, BLOCKS) for one in INSTANCES} | {MAIN: BLOCKS, INSTANCES[1]: 0}
    for one, held in expected.items():
        assert await catalog.publish_all(one, snapshot(chain[:held]), LONG_S)
    for sent in ({"evalsha": 1, "eval": 1}, {"evalsha": 1}):
        await client.config_resetstat()
        assert await catalog.longest(chain, INSTANCES) == expected
        assert await commands(client) == sent


async def test_longest_is_that_of_brute_force_after_any_evictions(valkey_url: str, catalog: RedisPrefixCatalog) -> None:
    """Trees of prompts that share beginnings; leaves go first, so that what is left is prefix-closed."""
    await announce_all(valkey_url)
    draw = Random(2)
    trunk = [draw.getrandbits(64) for _ in range(BLOCKS)]
    prompts = [trunk]
    for _ in range(3):
        fork = draw.randrange(BLOCKS)
        prompts.append(trunk[:fork] + [draw.getrandbits(64) for _ in range(BLOCKS - fork)])
    truth: dict[Instance, set[int]] = {}
    for one in INSTANCES:
        lengths = [draw.randint(0, BLOCKS) for _ in prompts]
        whole = snapshot(hash for prompt, length in zip(prompts, lengths, strict=True) for hash in prompt[:length])
        assert await catalog.publish_all(one, whole, LONG_S)
        kept = [draw.randint(0, length) for length in lengths]
        truth[one] = {hash for prompt, length in zip(prompts, kept, strict=True) for hash in prompt[:length]}
        assert await catalog.publish(one, batch(whole.state, removed=whole.hashes - truth[one]), LONG_S)
    for prompt in prompts:
        found = await catalog.longest(prompt, INSTANCES)
        for one, held in truth.items():
            assert found[one] == next((at for at, hash in enumerate(prompt) if hash not in held), BLOCKS)


async def test_every_key_of_an_instance_runs_out_by_itself(client: Redis, catalog: RedisPrefixCatalog) -> None:
    whole = snapshot(range(10))
    assert await catalog.publish_all(MAIN, whole, 1000)
    change = batch(whole.state, added=[10])
    assert await catalog.publish(MAIN, change, 2000)
    keys = sorted(await client.keys(f"pdd:cached:{MAIN.id}:*"))
    assert [await client.type(key) for key in keys] == [b"string", b"set"]
    assert all([1000 < await client.ttl(key) <= 2000 for key in keys])
    assert await catalog.renew(MAIN, change.state, 3000)
    assert all([2000 < await client.ttl(key) <= 3000 for key in keys])


async def test_parts_of_a_snapshot_that_was_broken_off_run_out_and_do_no_harm(client: Redis, catalog: RedisPrefixCatalog) -> None:
    publishing = asyncio.create_task(catalog.publish_all(MAIN, snapshot(range(40 * PART_HASHES)), LONG_S))
    while not await client.exists(parts := f"pdd:cached:{MAIN.id}:{MAIN.incarnation:016x}:1"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    publishing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await publishing
    assert 0 < await client.ttl(parts) <= LONG_S
    assert await catalog.snapshot(MAIN) is None
    whole = snapshot(range(3), seq=2)
    assert await catalog.publish_all(MAIN, whole, LONG_S)
    assert await catalog.snapshot(MAIN) == whole


async def test_snapshot_of_many_parts_is_published_whole(catalog: RedisPrefixCatalog) -> None:
    whole = snapshot(range(0, 7 * (2 * PART_HASHES + 5), 7))
    assert await catalog.publish_all(MAIN, whole, LONG_S)
    assert await catalog.snapshot(MAIN) == whole


async def test_snapshot_with_parts_missing_is_refused(catalog: RedisPrefixCatalog) -> None:
    whole = snapshot([1, 2])
    assert await catalog.publish_all(MAIN, whole, LONG_S)
    assert await catalog.publish_all(MAIN, whole, LONG_S)  # its answer was lost
    missing = CacheSnapshot(snapshot([1, 2, 3], seq=2).state, frozenset({1, 2}))
    assert not await catalog.publish_all(MAIN, missing, LONG_S)
    assert await catalog.snapshot(MAIN) == whole


async def test_entry_of_the_stream_that_cannot_be_read_hides_no_other(client: Redis, catalog: RedisPrefixCatalog) -> None:
    position = await catalog.position()
    whole = snapshot([1])
    await client.xadd("pdd:cached:events", {"prev": "0-0", "event": b"not one of ours"})
    assert await catalog.publish_all(MAIN, whole, LONG_S)
    assert (await catalog.events(position, WAIT_S)).events == (CacheEvent(MAIN, whole.state),)


async def test_keys_that_cannot_be_read_hold_nothing(client: Redis, catalog: RedisPrefixCatalog) -> None:
    await client.set(f"pdd:cached:{MAIN.id}:{MAIN.incarnation:016x}", b"not one of ours")
    assert await catalog.snapshot(MAIN) is None


async def test_server_that_never_answers_is_unavailable_within_the_deadline() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while await reader.read(4096):
                pass

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    state = CacheState(1, 0, 0)
    async with server, RedisPrefixCatalog(f"redis://127.0.0.1:{port}/0", deadline_s=0.05) as catalog:
        for call in (
            catalog.publish(MAIN, batch(state), LONG_S),
            catalog.publish_all(MAIN, snapshot([1]), LONG_S),
            catalog.renew(MAIN, state, LONG_S),
            catalog.withdraw(MAIN),
            catalog.distrust(MAIN, state),
            catalog.longest([1], INSTANCES),
            catalog.snapshot(MAIN),
            catalog.position(),
            catalog.events("1-1", LONG_S),
        ):
            with pytest.raises(RegistryUnavailable, match=f"127.0.0.1:{port}"):
                await call
