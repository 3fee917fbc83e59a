"""Which instances a request could run on, the best first: prefix hit against load.

Called by `router`. Pure.

A pair of prefill and main is as good as the time until main could go on: what the prefill lacks is computed, what main lacks
crosses the line whatever the prefill has, so only what both have is free. To both sides' time comes the wait for those who are
there already. That alone would let a hot prefix pin one instance, since no single request gains from filling another's cache. So
the hit counts only up to a bound: an instance with more than its share of the requests comes after all others. The first request
sent elsewhere takes the prefix there, and from then on there are two to choose from.

A conversation stays with its main while that has a free slot, whatever the others' load: it has one request at a time, and its
history is nobody else's, so moving it gains nothing for the next one. No bound keeps it from the prefill that has its history
either: cost alone decides there, so that only a long queue sends it elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, Link, RouteRequest, Snapshot
from pdd.catalog.base import Registration, Role
from pdd.kv.layout import differences


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request would run, and what that costs."""

    prefill: Candidate
    main: Candidate
    relay: Candidate | None  # the least loaded that can take the prefill's KV
    link: Link
    prefill_s: float  # until the first token: the queue and the prompt less the hit
    missing_tokens: int
    missing_bytes: int
    transfer_s: float
    main_wait_s: float  # for a slot

    @property
    def stall_s(self) -> float:
        """From the first token to the second, with no relay between."""
        return self.transfer_s + self.main_wait_s


def needed_roles(pipeline: Pipeline | None) -> tuple[Role, ...]:
    """The roles without which no request can be served; None: each request has a pipeline of its own."""
    return (Role.PREFILL, Role.RELAY, Role.MAIN) if pipeline is Pipeline.RELAY else (Role.PREFILL, Role.MAIN)


def best_route(snapshot: Snapshot, request: RouteRequest, policy: RoutePolicy) -> Route:
    """Raises MeshError NO_INSTANCE, which names the role that nobody can fill and says why."""
    needed = needed_roles(policy.pipeline)
    _check_present(snapshot.candidates, needed)  # before sizes: without a role the gateway does not know what the mesh holds
    fitting = {role: _fitting(snapshot.candidates, role, request.tokens) for role in needed}
    if policy.pipeline is None:
        fitting[Role.RELAY] = _holding(snapshot.candidates, Role.RELAY, request.tokens)
    relays = _by_load(fitting.get(Role.RELAY, ()), policy)
    for prefill, main in _ranked(snapshot, request, policy, fitting[Role.PREFILL], fitting[Role.MAIN], relays):
        relay = _first_compatible(prefill, relays)
        if _compatible(prefill, main) and (relay is not None or Role.RELAY not in needed):
            return _route(snapshot, request, policy, prefill, main, relay)
    raise MeshError(MeshErrorCode.NO_INSTANCE, _incompatible(fitting, needed))


def best_relay(
    candidates: Sequence[Candidate], prefill: Candidate, request: RouteRequest, policy: RoutePolicy
) -> Candidate | None:
    """The least loaded that can take the prefill's KV, a full one only where all are; None where there is none."""
    return _first_compatible(prefill, _by_load(_holding(candidates, Role.RELAY, request.tokens), policy))


def full(relay: Candidate, policy: RoutePolicy) -> bool:
    return relay.requests >= relay.registration.slots or relay.kv_used >= policy.full_kv


def missing(request: RouteRequest, prefill: Registration, cached_tokens: int) -> tuple[int, int]:
    """Tokens and bytes that cross to one who has so many tokens cached: full blocks only, the tail is computed there."""
    block_tokens = prefill.layout.block_tokens
    blocks = max(0, request.prompt_tokens // block_tokens - cached_tokens // block_tokens)
    return blocks * block_tokens, blocks * prefill.layout.block_bytes


def _ranked(
    snapshot: Snapshot,
    request: RouteRequest,
    policy: RoutePolicy,
    prefills: Sequence[Candidate],
    mains: Sequence[Candidate],
    relays: Sequence[Candidate],
) -> Iterator[tuple[Candidate, Candidate]]:
    """All pairs, the best first: a relay at hand, main's and prefill's load bound, cost, ids."""
    busy_mains = _over_bound(mains, policy)
    busy_prefills = _over_bound(prefills, policy) if request.session_main is None else frozenset[str]()
    prefill_costs = {one.id: _prefill_cost_s(one, request, policy) for one in prefills}
    main_ranks = {one.id: _main_rank(one, one.id in busy_mains, request, policy) for one in mains}
    main_costs = {one.id: _main_wait_s(one, request, policy) + policy.crowding_s * one.pressure for one in mains}
    keyed = []
    for prefill in prefills:
        alone = bool(relays) and _first_compatible(prefill, relays) is None
        for main in mains:
            link = snapshot.link(prefill.registration, main.registration)
            _, missing_bytes = missing(request, prefill.registration, main.cached_tokens)
            cost_s = prefill_costs[prefill.id] + main_costs[main.id] + link.transfer_s(missing_bytes)
            busy = prefill.id in busy_prefills
            keyed.append(((alone, main_ranks[main.id], busy, cost_s, prefill.id, main.id), prefill, main))
    keyed.sort(key=lambda one: one[0])
    return ((prefill, main) for _, prefill, main in keyed)


def _route(
    snapshot: Snapshot,
    request: RouteRequest,
    policy: RoutePolicy,
    prefill: Candidate,
    main: Candidate,
    relay: Candidate | None,
) -> Route:
    link = snapshot.link(prefill.registration, main.registration)
    missing_tokens, missing_bytes = missing(request, prefill.registration, main.cached_tokens)
    return Route(
        prefill=prefill,
        main=main,
        relay=relay,
        link=link,
        prefill_s=_prefill_s(prefill, request, policy),
        missing_tokens=missing_tokens,
        missing_bytes=missing_bytes,
        transfer_s=link.transfer_s(missing_bytes),
        main_wait_s=_main_wait_s(main, request, policy),
    )


def _prefill_s(prefill: Candidate, request: RouteRequest, policy: RoutePolicy) -> float:
    return (prefill.waiting_tokens + _computed_tokens(prefill, request)) / (prefill.prefill_tokens_s or policy.prefill_tokens_s)


def _prefill_cost_s(prefill: Candidate, request: RouteRequest, policy: RoutePolicy) -> float:
    """Its time, and what its computing costs those behind it: a wait for the prefix ends, work done twice is lost."""
    computing_s = _computed_tokens(prefill, request) / (prefill.prefill_tokens_s or policy.prefill_tokens_s)
    others_s = policy.computing_weight * computing_s + policy.crowding_s * prefill.pressure
    return _prefill_s(prefill, request, policy) + others_s


def _computed_tokens(prefill: Candidate, request: RouteRequest) -> int:
    return request.prompt_tokens - min(prefill.cached_tokens, request.prompt_tokens - 1)  # the last token always is


def _main_wait_s(main: Candidate, request: RouteRequest, policy: RoutePolicy) -> float:
    """For a slot, if those there are like this one: each that ends lets one in."""
    slots = main.registration.slots
    answer_s = request.expected_output_tokens * (main.step_s or policy.step_s)
    return max(0.0, main.requests + 1 - slots) * answer_s / slots


def _main_rank(main: Candidate, busy: bool, request: RouteRequest, policy: RoutePolicy) -> int:
    if main.registration.instance == request.session_main and main.pressure < policy.session_pressure:
        return 0
    return 2 if busy else 1


def _over_bound(candidates: Sequence[Candidate], policy: RoutePolicy) -> frozenset[str]:
    """Those that one more request would give more than their share; never all of them, as the bound is at least the mean."""
    slots = sum(one.registration.slots for one in candidates)
    requests = sum(one.requests for one in candidates) + 1

    def limit(one: Candidate) -> int:
        share = one.registration.slots / slots
        return math.ceil(max(policy.load_bound * requests * share, policy.free_share * one.registration.slots))

    return frozenset(one.id for one in candidates if one.requests + 1 > limit(one))


def _check_present(candidates: Sequence[Candidate], needed: Sequence[Role]) -> None:
    present = {one.registration.role for one in candidates}
    for role in needed:
        if role not in present:
            text = f"no {role.value} instance is connected; start one or wait for it to register"
            raise MeshError(MeshErrorCode.NO_INSTANCE, text)


def _fitting(candidates: Sequence[Candidate], role: Role, tokens: int) -> list[Candidate]:
    """Everyone of a role whose context holds the request; there is somebody. Raises MeshError where nobody's does."""
    fitting = _holding(candidates, role, tokens)
    if fitting:
        return fitting
    contexts = [one.registration.context_tokens for one in candidates if one.registration.role is role]
    text = f"no {role.value} instance holds {tokens} tokens, the largest {max(contexts)}; shorten the prompt or lower max_tokens"
    raise MeshError(MeshErrorCode.NO_INSTANCE, text)


def _holding(candidates: Sequence[Candidate], role: Role, tokens: int) -> list[Candidate]:
    return [one for one in candidates if one.registration.role is role and one.registration.context_tokens >= tokens]


def _by_load(relays: Sequence[Candidate], policy: RoutePolicy) -> list[Candidate]:
    return sorted(relays, key=lambda one: (full(one, policy), one.pressure, one.id))


def _first_compatible(prefill: Candidate, decoders: Sequence[Candidate]) -> Candidate | None:
    return next((decoder for decoder in decoders if _compatible(prefill, decoder)), None)


def _compatible(prefill: Candidate, decoder: Candidate) -> bool:
    ours, theirs = prefill.registration.layout, decoder.registration.layout
    return ours is theirs or not differences(ours, theirs)


def _incompatible(fitting: dict[Role, list[Candidate]], needed: Sequence[Role]) -> str:
    """Of the least loaded prefill: which decoder it lacks, and in what the least loaded one differs."""
    by_load = {role: sorted(fitting[role], key=lambda one: (one.pressure, one.id)) for role in needed}
    prefill = by_load[Role.PREFILL][0]
    role = next(role for role in needed[1:] if _first_compatible(prefill, by_load[role]) is None)
    nearest = by_load[role][0].registration
    why = "; ".join(differences(prefill.registration.layout, nearest.layout))
    return f"no {role.value} instance can take KV from {prefill.registration}; {nearest} differs in {why}"
