"""How long the prefix catalog takes, against a Valkey of this machine, and what keeping it costs.

    python -m bench.catalog                     16 instances, a prompt of 64K tokens in blocks of 16
    python -m bench.catalog --blocks 128        a prompt of 2K tokens

Each instance holds a random part of the prompt and `--others` other blocks. The table's lines:

    ping                 the least that any call takes; its p99 is the machine's, not the catalog's
    longest, catalog     one prompt over all instances, asked in the server: one round trip
    longest, index       the same in the gateway's own index, which costs no round trip
    publish              a batch of 64 new and 64 removed blocks
    publish everything   all that one instance holds, as after a flush
    load                 the snapshot of one instance, into an index

Wall time, client and server on the same two cores; round trips are counted by the server, scripts alone. Where others use the
cores too, p99 is what they leave: `chrt -f 1 python -m bench.catalog` goes before them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import uvloop
from redis.asyncio import Redis

from bench.report import RESULTS, print_table, write_json
from pdd.catalog.base import Registration, Role
from pdd.catalog.embedded import embedded_valkey
from pdd.catalog.index import PrefixIndex
from pdd.catalog.prefixes import CacheBatch, CacheSnapshot, CacheState, digest
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.identity import Instance
from pdd.kv.layout import KvLayout

TTL_S = 600.0
CHANGES = 64
LAYOUT = KvLayout("model", "tokenizer", 1, 1, 1, 16, ("dense.f16",), 64, "sim")


@dataclass(frozen=True)
class Row:
    what: str
    p50_ms: float
    p99_ms: float
    most_ms: float
    round_trips: float  # a call


@dataclass(frozen=True)
class Setting:
    instances: int
    blocks: int  # of the prompt
    others: int  # blocks of each instance beside it
    rounds: int


class Bench:
    def __init__(self, setting: Setting, catalog: RedisPrefixCatalog, client: Redis) -> None:
        draw = Random(0)
        self._setting = setting
        self._catalog = catalog
        self._client = client
        self._prompt = [draw.getrandbits(64) for _ in range(setting.blocks)]
        self._held = {
            Instance(f"main-{number}", number + 1): draw.randint(0, setting.blocks) for number in range(setting.instances)
        }
        self.snapshots = {
            instance: _snapshot([*self._prompt[:held], *(draw.getrandbits(64) for _ in range(setting.others))])
            for instance, held in self._held.items()
        }
        self._busy, snapshot = next(iter(self.snapshots.items()))
        self._batches = _batches(snapshot, setting.rounds + 1, draw)

    async def rows(self) -> list[Row]:
        rounds, few = self._setting.rounds, max(5, self._setting.rounds // 100)
        index = PrefixIndex()
        index.follow(list(self.snapshots))
        rows = [await self._measure("ping", rounds, self._ping), await self._measure("publish", rounds, self._publish)]
        rows.append(await self._measure("publish everything", few, self._publish_all))
        rows.append(await self._measure("load", few, lambda: self._load(index)))
        rows.append(await self._measure("longest, catalog", rounds, self._longest))
        for instance, snapshot in self.snapshots.items():
            index.load(instance, snapshot)
        rows.append(await self._measure("longest, index", rounds, lambda: self._longest_of(index)))
        return rows

    async def _ping(self) -> None:
        await self._client.ping()

    async def _publish_all(self) -> None:
        instance, snapshot = self._next()
        state = CacheState(snapshot.state.seq + self._setting.rounds, snapshot.state.count, snapshot.state.digest)
        self.snapshots[instance] = CacheSnapshot(state, snapshot.hashes)
        assert await self._catalog.publish_all(instance, self.snapshots[instance], TTL_S)

    async def _load(self, index: PrefixIndex) -> None:
        instance, _ = self._next()
        snapshot = await self._catalog.snapshot(instance)
        assert snapshot is not None
        assert index.load(instance, snapshot)

    async def _longest(self) -> None:
        assert await self._catalog.longest(self._prompt, list(self._held)) == self._held

    async def _longest_of(self, index: PrefixIndex) -> None:
        assert {instance: index.longest(self._prompt, instance) for instance in self._held} == self._held

    async def _publish(self) -> None:
        assert await self._catalog.publish(self._busy, self._batches.popleft(), TTL_S)

    def _next(self) -> tuple[Instance, CacheSnapshot]:
        """The one whose turn it is."""
        instance = next(iter(self.snapshots))
        self.snapshots[instance] = self.snapshots.pop(instance)  # to the end
        return instance, self.snapshots[instance]

    async def _measure(self, what: str, rounds: int, call: Callable[[], Awaitable[None]]) -> Row:
        await call()  # the server learns the script
        calls, took_ms = await self._calls(), []
        for _ in range(rounds):
            before = time.perf_counter()
            await call()
            took_ms.append(1000 * (time.perf_counter() - before))
        cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
        return Row(what, cuts[49], cuts[98], max(took_ms), (await self._calls() - calls) / rounds)

    async def _calls(self) -> int:
        stats = await self._client.info("commandstats")
        return sum(stats[name]["calls"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats)


def _batches(snapshot: CacheSnapshot, number: int, draw: Random) -> deque[CacheBatch]:
    """Each adds some and removes what the last one has added."""
    batches: deque[CacheBatch] = deque()
    state, removed = snapshot.state, tuple(snapshot.hashes)[:CHANGES]
    for _ in range(number):
        added = tuple(draw.getrandbits(64) for _ in removed)
        state = CacheState(state.seq + 1, state.count, state.digest ^ digest(added) ^ digest(removed))
        batches.append(CacheBatch(state, added, removed))
        removed = added
    return batches


def _snapshot(hashes: Sequence[int]) -> CacheSnapshot:
    held = frozenset(hashes)
    return CacheSnapshot(CacheState(1, len(held), digest(held)), held)


async def measure(setting: Setting) -> list[Row]:
    async with (
        embedded_valkey() as url,
        Redis.from_url(url) as client,
        RedisRegistry(url) as registry,
        RedisPrefixCatalog(url) as catalog,
    ):
        bench = Bench(setting, catalog, client)
        for instance, snapshot in bench.snapshots.items():
            await registry.announce(Registration(instance, Role.MAIN, "b", "127.0.0.1:1", LAYOUT, 1, 1), TTL_S)
            await catalog.publish_all(instance, snapshot, TTL_S)
        return await bench.rows()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--others", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--json", type=Path, default=RESULTS / "catalog.json")
    options = parser.parse_args()
    setting = Setting(options.instances, options.blocks, options.others, options.rounds)
    rows = uvloop.run(measure(setting))
    print_table(
        ["ms", "p50", "p99", "max", "round trips"],
        [[row.what, *(f"{ms:.3f}" for ms in (row.p50_ms, row.p99_ms, row.most_ms)), f"{row.round_trips:.2f}"] for row in rows],
    )
    write_json(options.json, {"setting": asdict(setting), "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
