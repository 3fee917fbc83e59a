"""Registrations of instances that exist only on paper."""

from __future__ import annotations

from pdd.catalog.base import Registration, Role
from pdd.identity import Instance
from pdd.kv.layout import SIM_DIGEST, KvLayout

LAYOUT = KvLayout("model", "tokenizer", 2, 1, 4, 16, (SIM_DIGEST,), 1024, "sim")


def registration(
    role: Role,
    name: str = "",
    *,
    incarnation: int = 1,
    address: str = "127.0.0.1:1",
    layout: KvLayout = LAYOUT,
    context_tokens: int = 8192,
    slots: int = 8,
    load: float = 0.0,
) -> Registration:
    instance = Instance(name or f"{role.value}-0", incarnation)
    return Registration(instance, role, "a", address, layout, context_tokens, slots, load)
