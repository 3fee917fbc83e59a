"""What a decision sees, made up: instances with their load and hits, one line between the sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.routing.snapshot import Candidate, Link, RouteRequest, Snapshot
from pdd.catalog.base import Role
from pdd.kv.layout import KvLayout
from tests.unit.gateway.instances import LAYOUT, registration

P, RLD, MD = Role.PREFILL, Role.RELAY, Role.MAIN
BLOCK_BYTES = LAYOUT.block_bytes  # of 16 tokens
LINK = Link(goodput_bytes_s=1_000_000.0, round_trip_s=0.05)  # 976 blocks, or 15,625 tokens a second


def candidate(
    role: Role,
    name: str = "",
    *,
    load: float = 0.0,
    in_flight: int = 0,
    cached_tokens: int = 0,
    kv_used: float = 0.0,
    queued_tokens: int = 0,
    slots: int = 8,
    incarnation: int = 1,
    layout: KvLayout = LAYOUT,
    context_tokens: int = 131_072,
) -> Candidate:
    its = registration(role, name, incarnation=incarnation, layout=layout, context_tokens=context_tokens, slots=slots)
    its = replace(its, site="b" if role is MD else "a")
    return Candidate(its, load, in_flight, cached_tokens, kv_used=kv_used, queued_tokens=queued_tokens)


def sight(*candidates: Candidate, link: Link = LINK) -> Snapshot:
    return Snapshot(candidates, prior=LINK, links={("a", "b"): link})


def trio(cached_tokens: int = 0, *, link: Link = LINK, relays: Sequence[Candidate] | None = None) -> Snapshot:
    """One of each; prefill and main have the same of the prompt."""
    decoders = [candidate(RLD)] if relays is None else relays
    ends = (candidate(P, cached_tokens=cached_tokens), candidate(MD, cached_tokens=cached_tokens))
    return sight(*ends, *decoders, link=link)


def request(prompt_tokens: int = 65_536, expected: int = 1000, max_tokens: int = 1000, **more: object) -> RouteRequest:
    return RouteRequest(prompt_tokens, max_tokens, expected, **more)  # type: ignore[arg-type]
