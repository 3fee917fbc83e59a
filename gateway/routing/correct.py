"""When a plan has proved wrong while its request runs.

Called by `gateway.mesh` on what it hears of the request; a reason becomes the handoff machine's KvLate or LongerThanExpected.
Pure. `relay_for` and `main_for` name the decoder that is then taken in.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.generation import MeshError
from gateway.handoff.machine import Pipeline
from gateway.routing.plan import Plan, ReasonCode
from gateway.routing.routes import best_relay, best_route, full
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Link, RouteRequest, Snapshot
from pdd.catalog.base import Registration, Role


def kv_is_late(
    plan: Plan,
    policy: RoutePolicy,
    *,
    waited_s: float = 0.0,
    missing_bytes: int | None = None,
    link: Link | None = None,
) -> str | None:
    """Why a direct plan needs a relay after all; None: it does not, or was told to do without one.

    `waited_s`: since the first token, with main's KV still not there. `missing_bytes`, with `link`: what main wants, as
    TransferWanted tells; the link without this request's own promise.
    """
    if plan.pipeline is not Pipeline.DIRECT or plan.reason_code is ReasonCode.FORCED:
        return None
    if waited_s >= policy.stall_budget_s:
        return f"main's KV is not there {waited_s:.3g} s after the first token, the stall budget is {policy.stall_budget_s:g} s"
    if missing_bytes is None or link is None or missing_bytes <= plan.missing_bytes:
        return None
    transfer_s = link.transfer_s(missing_bytes)
    if transfer_s <= policy.stall_budget_s:
        return None
    text = f"main lacks {missing_bytes} bytes, {plan.missing_bytes} were expected: {transfer_s:.3g} s to send"
    return f"{text}, over the stall budget of {policy.stall_budget_s:g} s"


def longer_than_expected(
    plan: Plan, policy: RoutePolicy, *, shown_tokens: int, max_tokens: int, step_s: float, link: Link
) -> str | None:
    """Why a singular plan needs a main after all; None where it does not.

    Asked as tokens are shown. An answer that has passed its expectation is expected to be twice as long as it is now, since
    nothing else is known of it. `step_s` is the relay's; 0 where it is not known.
    """
    if plan.pipeline is not Pipeline.SINGULAR or plan.reason_code is ReasonCode.RELAY_ALONE:
        return None
    if shown_tokens <= plan.expected_output_tokens:
        return None
    left_s = min(shown_tokens, max_tokens - shown_tokens) * (step_s or policy.step_s)
    transfer_s = link.transfer_s(plan.missing_bytes)
    if left_s <= transfer_s:
        return None
    text = f"{shown_tokens} tokens shown, {plan.expected_output_tokens} were expected"
    return f"{text}: about {left_s:.3g} s to go, and main could have its KV in {transfer_s:.3g} s"


def relay_for(plan: Plan, snapshot: Snapshot, request: RouteRequest, policy: RoutePolicy) -> Registration | None:
    """A relay with a free slot for a direct request that runs, whose main may be lost.

    None where there is none, or the request is to do without one.
    """
    if plan.reason_code is ReasonCode.FORCED:
        return None
    prefill = next((one for one in snapshot.candidates if one.registration.instance == plan.prefill.instance), None)
    relay = None if prefill is None else best_relay(snapshot.candidates, prefill, request, policy)
    return None if relay is None or full(relay, policy) else relay.registration


def main_for(plan: Plan, snapshot: Snapshot, request: RouteRequest, policy: RoutePolicy) -> Registration | None:
    """A main for a singular request that runs; None where there is none."""
    kept = plan.prefill.instance
    candidates = [one for one in snapshot.candidates if one.registration.instance == kept or one.registration.role is Role.MAIN]
    try:
        route = best_route(replace(snapshot, candidates=candidates), request, replace(policy, pipeline=Pipeline.DIRECT))
    except MeshError:
        return None
    return route.main.registration
