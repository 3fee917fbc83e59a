"""Registrations for the tests of the catalog."""

from __future__ import annotations

from pdd.catalog.base import Registration, Role
from pdd.catalog.prefixes import CacheState
from pdd.identity import Instance
from pdd.kv.layout import KvLayout

LAYOUT = KvLayout(
    model_digest="6d6f64656c",
    tokenizer_digest="746f6b",
    layers=24,
    kv_heads=2,
    head_size=64,
    block_tokens=16,
    wire_formats=("dense.f16",),
    block_bytes=196608,
    engine="llama",
)


def registration(
    id: str = "main-0",
    incarnation: int = 1,
    *,
    role: Role = Role.MAIN,
    layout: KvLayout = LAYOUT,
    load: float = 0.0,
    cached: CacheState | None = None,
) -> Registration:
    return Registration(
        instance=Instance(id, incarnation),
        role=role,
        site="b",
        address="127.0.0.1:7001",
        layout=layout,
        context_tokens=4096,
        slots=8,
        load=load,
        cached=cached,
    )
