"""What was seen of a deployment, before anybody judges it. Made by `collect` and its parts, read by `checks` and `show`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdd.catalog.base import Registration, Role
from pdd.catalog.prefixes import CacheState
from pdd.identity import Instance
from pdd.kv.layout import KvLayout


@dataclass(frozen=True, slots=True)
class Claims:
    """What the gateway's settings say, against which the facts are held."""

    wan_mbit: float  # PDD_WAN_MBIT
    model_digest: str
    tokenizer_digest: str
    needed_roles: tuple[Role, ...]  # without which no request is served


@dataclass(frozen=True, slots=True)
class RedisFacts:
    name: str
    ping_s: float
    used_bytes: int
    max_bytes: int  # 0: no limit
    eviction_policy: str
    evicted_keys: int


@dataclass(frozen=True, slots=True)
class RedisAway:
    why: str


class Silence(enum.Enum):
    """Why an instance could not be asked."""

    NOBODY = "nobody"  # the address names no machine, or the connection was refused
    NO_ANSWER = "no_answer"  # in time, or the connection broke
    NO_DIAGNOSTICS = "no_diagnostics"  # what answers is not of this version


@dataclass(frozen=True, slots=True)
class Unreached:
    silence: Silence
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an instance says of itself."""

    instance: Instance
    role: str
    layout: KvLayout
    running: int
    waiting: int
    slots: int
    round_trip_s: float  # the shortest of a few
    clock_offset_s: float  # its wall clock less the doctor's, at the middle of that round trip


@dataclass(frozen=True, slots=True)
class Goodput:
    bytes_per_s: float
    arrived_bytes: int

    @property
    def mbit(self) -> float:
        return self.bytes_per_s / 125_000


@dataclass(frozen=True, slots=True)
class Unmeasured:
    why: str


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What the catalog held of an instance, and right after it what the instance held."""

    published: CacheState | None  # None: nothing
    stored: tuple[int, int]  # count and digest of the hashes that the catalog holds with it
    held: tuple[int, int]  # count and digest of what the instance caches

    @property
    def agrees(self) -> bool:
        published = self.published
        return published is not None and (published.count, published.digest) == self.stored == self.held


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    registration: Registration
    found: Report | Unreached
    link: Goodput | Unmeasured | None = None  # of a main that was probed
    cache_looks: tuple[CacheLook, ...] = ()  # of one that keeps a prefix cache; the last agrees where one did


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    url: str
    missing: tuple[str, ...] = ()  # roles; it is ready where there are none
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayAway:
    url: str
    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    redis: RedisFacts | RedisAway
    looks: tuple[Sequence[Registration], ...] = ()  # into the registry, one after another, for longer than a heartbeat lives
    refused: Mapping[str, str] = field(default_factory=dict)  # why, by instance id
    instances: tuple[InstanceFacts, ...] = ()  # those of the first look
    gateway: GatewayFacts | GatewayAway | None = None  # None: not asked

    @property
    def present(self) -> Sequence[Registration]:
        """Those of the last look."""
        return self.looks[-1] if self.looks else ()
