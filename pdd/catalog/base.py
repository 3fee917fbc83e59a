"""Who is there: the instance registry's interface, its data, and the rule for who may join.

Instances announce themselves with a heartbeat that lives for a TTL; the gateway reads the list. Implemented by `redis` and
`memory`, which pass one contract suite. What the instances cache is the prefix catalog's (`prefixes`).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.catalog.prefixes import CacheState
from pdd.identity import Instance
from pdd.kv.layout import KvLayout, differences


class Role(enum.Enum):
    PREFILL = "prefill"
    RELAY = "relay"
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class Registration:
    """What an instance says of itself. `address` is host:port as the gateway and prefill reach it, through the WAN for a main."""

    instance: Instance
    role: Role
    site: str
    address: str
    layout: KvLayout
    context_tokens: int
    slots: int
    load: float = 0.0  # (running + waiting) / slots
    cached: CacheState | None = None  # what it has told the prefix catalog; None: it keeps no prefix cache

    def __str__(self) -> str:
        return f"{self.role.value} {self.instance.id} ({self.address}, site {self.site})"


class IncompatibleInstance(Exception):
    """Raised at registration: names both sides and every field that differs."""


class RegistryUnavailable(Exception):
    """The registry's server can't be reached; the text names it."""


class Registry(ABC):
    @abstractmethod
    async def announce(self, registration: Registration, ttl_s: float) -> None:
        """Register or renew. Raises IncompatibleInstance where a live instance could not exchange KV with this one."""

    @abstractmethod
    async def withdraw(self, instance: Instance) -> None:
        """Leave; does nothing where a newer incarnation has taken the name."""

    @abstractmethod
    async def instances(self) -> tuple[Registration, ...]:
        """Everyone whose heartbeat has not run out, ordered by role and id."""


def refuse_incompatible(newcomer: Registration, present: Sequence[Registration]) -> None:
    """Raise IncompatibleInstance unless the newcomer can exchange KV with everyone present."""
    for other in present:
        found = differences(newcomer.layout, other.layout)
        if found and other.instance.id != newcomer.instance.id:
            raise IncompatibleInstance(f"{newcomer} can't join beside {other}: " + "; ".join(found))
