"""Whom a StartPrefill sends KV to, checked. Pure; called by the session. The rest of it is checked by `pdd.request_proto`."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.catalog.base import Role
from pdd.v1 import prefill_pb2

MAX_TARGETS = 2

_ROLES = ("", Role.RELAY.value, Role.MAIN.value)


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder that gets the blocks."""

    id: str  # of its instance
    kv_address: str  # host:port as seen from here
    role: str = ""  # "relay" or "main", where the gateway says so


def targets_of_start(message: prefill_pb2.StartPrefill) -> tuple[Target, ...]:
    """Raises ValueError that names the field and what it must be."""
    targets = tuple(Target(target.instance.id, target.kv_address, target.role) for target in message.targets)
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise ValueError(f"targets: 1 to {MAX_TARGETS} of them, got {len(targets)}")
    for target in targets:
        if not target.id or not target.kv_address:
            raise ValueError("targets: each needs instance.id and kv_address")
        if target.role not in _ROLES:  # it names metrics and spans
            raise ValueError(f"targets: the role is relay, main or not told, got {target.role!r}")
    if len({target.id for target in targets}) != len(targets):
        raise ValueError(f"targets: {targets[0].id} is named twice")
    return targets
