"""Which pipeline and which instances serve a request, and why: one pure function.

Called by `gateway.mesh` for every request. Raises MeshError NO_INSTANCE where a role that is needed has nobody, OVERLOADED where
all relays are full and a direct answer would stall too long.

    estimate = (missing bytes + what passes meanwhile of the line's backlog) / goodput + round trip

    estimate within the stall budget            direct     main has its KV before the user misses the second token
    above                                       relay      the relay makes the answer meanwhile
    ... and the relay would end before that     singular   nothing crosses: long prompt, low hit, short answer
    ... and no relay could take it              direct, the stall declared
    ... and all relays are full                 Wait, up to the TTFT budget; then direct, the stall declared; then OVERLOADED

The estimate is of KV that is there already. Some of it crosses while prefill computes the rest, which is left out on purpose: how
long prefill will take is the weaker guess. An estimate that is too high costs a relay's slot for a moment, one that is too low
stalls a user. Only what main lacks counts for it, whatever prefill has. What prefill lacks is computed: that delays the first
token and not the second, and is weighed where instances are chosen (`routes`).

A request never stays on a relay for want of anything: only by the singular rule, since main's cache learns nothing from it.
"""

from __future__ import annotations

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.plan import Plan, ReasonCode, Wait
from gateway.routing.routes import Route, best_route, full
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import RouteRequest, Snapshot


def decide(snapshot: Snapshot, request: RouteRequest, policy: RoutePolicy) -> Plan | Wait:
    route = best_route(snapshot, request, policy)
    if policy.pipeline is not None:
        return _plan(request, route, policy.pipeline, ReasonCode.FORCED, f"pipeline {policy.pipeline.value} is configured")
    lacking = f"main lacks {route.missing_tokens} of {request.prompt_tokens} tokens, {route.transfer_s:.3g} s to send"
    budget = f"the stall budget of {policy.stall_budget_s:g} s"
    if route.transfer_s <= policy.stall_budget_s:
        return _plan(request, route, Pipeline.DIRECT, _hit(request, route), f"{lacking}, within {budget}")
    if route.relay is None:
        why = f"{lacking}, over {budget}, and no relay can take it: expect a stall of {route.stall_s:.3g} s"
        return _plan(request, route, Pipeline.DIRECT, ReasonCode.NO_RELAY, why)
    if full(route.relay, policy):
        return _without_slot(request, route, policy, lacking)
    relay_s = request.expected_output_tokens * (route.relay.step_s or policy.step_s)
    if _singular(request, route, relay_s, policy):
        why = f"{lacking}, and the relay makes about {request.expected_output_tokens} tokens in {relay_s:.3g} s"
        return _plan(request, route, Pipeline.SINGULAR, ReasonCode.SINGULAR, why)
    if policy.relay_alone_when_low_hit:
        return _plan(request, route, Pipeline.SINGULAR, ReasonCode.RELAY_ALONE, f"{lacking}, kept on the relay for a benchmark")
    return _plan(request, route, Pipeline.RELAY, ReasonCode.LOW_HIT, f"{lacking}, over {budget}")


def _singular(request: RouteRequest, route: Route, relay_s: float, policy: RoutePolicy) -> bool:
    short = request.expected_output_tokens < policy.singular_most_tokens
    large = route.missing_bytes / route.link.goodput_bytes_s >= policy.singular_least_s
    return short and large and relay_s < route.transfer_s


def _without_slot(request: RouteRequest, route: Route, policy: RoutePolicy, lacking: str) -> Plan | Wait:
    left_s = policy.ttft_budget_s - request.waited_s - route.prefill_s
    if left_s > 0:
        return Wait(left_s, f"{lacking}, and all relays are full")
    why = f"{lacking}, and all relays stayed full for {request.waited_s:.3g} s"
    if route.stall_s > policy.declared_stall_s:
        text = f"{why}; a direct answer may stall for {policy.declared_stall_s:g} s at most, not for {route.stall_s:.3g} s"
        raise MeshError(MeshErrorCode.OVERLOADED, f"{text}: try again later, or start relays and mains")
    text = f"{why}: expect a stall of {route.stall_s:.3g} s"
    return _plan(request, route, Pipeline.DIRECT, ReasonCode.RELAY_FULL, text)


def _hit(request: RouteRequest, route: Route) -> ReasonCode:
    return ReasonCode.HIGH_HIT if 2 * route.main.cached_tokens >= request.prompt_tokens else ReasonCode.WITHIN_BUDGET


def _plan(request: RouteRequest, route: Route, pipeline: Pipeline, code: ReasonCode, reason: str) -> Plan:
    return Plan(
        pipeline=pipeline,
        prefill=route.prefill.registration,
        relay=route.relay.registration if route.relay is not None and pipeline is not Pipeline.DIRECT else None,
        main=route.main.registration if pipeline is not Pipeline.SINGULAR else None,
        reason_code=code,
        reason=reason,
        missing_tokens=route.missing_tokens,
        missing_bytes=route.missing_bytes,
        transfer_s=route.transfer_s,
        prefill_hit_tokens=min(route.prefill.cached_tokens, request.prompt_tokens - 1),
        main_hit_tokens=min(route.main.cached_tokens, request.prompt_tokens),
        expected_output_tokens=request.expected_output_tokens,
    )
