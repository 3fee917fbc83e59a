from dataclasses import replace

import pytest

from gateway.handoff.machine import Pipeline
from gateway.routing.correct import kv_is_late, longer_than_expected, main_for, relay_for
from gateway.routing.plan import Plan
from gateway.routing.router import decide
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import RouteRequest, Snapshot
from pdd.catalog.base import Role
from tests.unit.gateway.routing.sight import LINK, MD, RLD, P, candidate, request, sight, trio

AUTO = RoutePolicy()


def plan(snapshot: Snapshot, asked: RouteRequest, policy: RoutePolicy = AUTO) -> Plan:
    decision = decide(snapshot, asked, policy)
    assert isinstance(decision, Plan)
    return decision


DIRECT = plan(trio(65_000), request())
SINGULAR = plan(trio(), request(expected=100, max_tokens=4000))


def test_kv_is_late_past_the_stall_budget() -> None:
    assert kv_is_late(DIRECT, AUTO, waited_s=0.1) is None
    assert "not there 0.2 s after the first token" in (kv_is_late(DIRECT, AUTO, waited_s=0.2) or "")


@pytest.mark.parametrize(
    ("missing_bytes", "late"),
    [
        (DIRECT.missing_bytes, False),  # as planned
        (DIRECT.missing_bytes + 1024, False),  # more, and still within the budget
        (10**6, True),
    ],
)
def test_kv_is_late_where_main_wants_too_much(missing_bytes: int, late: bool) -> None:
    assert (kv_is_late(DIRECT, AUTO, missing_bytes=missing_bytes, link=LINK) is not None) == late


@pytest.mark.parametrize("other", [plan(trio(), request()), plan(trio(), request(), RoutePolicy(pipeline=Pipeline.DIRECT))])
def test_a_relay_is_not_missed_where_there_is_one_or_none_is_wanted(other: Plan) -> None:
    assert kv_is_late(other, AUTO, waited_s=60.0) is None


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (100, None),
        (200, None),  # as much again takes 4 s, the transfer 4.2
        (215, "215 tokens shown, 100 were expected"),
        (3900, None),  # 100 are left at most
    ],
)
def test_an_answer_outgrows_its_expectation(shown: int, why: str | None) -> None:
    found = longer_than_expected(SINGULAR, AUTO, shown_tokens=shown, max_tokens=4000, step_s=0.02, link=LINK)
    assert (found is None) if why is None else why in (found or "")


def test_a_benchmarks_relay_keeps_what_it_has() -> None:
    alone = plan(trio(), request(), RoutePolicy(relay_alone_when_low_hit=True))
    assert longer_than_expected(alone, AUTO, shown_tokens=2000, max_tokens=9999, step_s=0.02, link=LINK) is None


def test_a_late_relay_needs_a_slot() -> None:
    free = relay_for(DIRECT, trio(relays=[candidate(RLD, "r-0", load=1.0), candidate(RLD, "r-1")]), request(), AUTO)
    assert free is not None
    assert free.instance.id == "r-1"
    assert relay_for(DIRECT, trio(relays=[candidate(RLD, load=1.0)]), request(), AUTO) is None
    assert relay_for(DIRECT, trio(relays=[]), request(), AUTO) is None


def test_a_relay_is_found_where_main_is_lost_but_not_where_prefill_is() -> None:
    here = trio(65_000)
    without_main = replace(here, candidates=[one for one in here.candidates if one.registration.role is not Role.MAIN])
    without_prefill = replace(here, candidates=[one for one in here.candidates if one.registration.role is not Role.PREFILL])
    assert relay_for(DIRECT, without_main, request(), AUTO) == relay_for(DIRECT, here, request(), AUTO) is not None
    assert relay_for(DIRECT, without_prefill, request(), AUTO) is None


def test_a_request_that_is_to_be_direct_gets_no_relay() -> None:
    forced = RoutePolicy(pipeline=Pipeline.DIRECT)
    assert relay_for(plan(trio(), request(), forced), trio(), request(), forced) is None


def test_a_late_main_takes_kv_from_the_requests_own_prefill() -> None:
    others = (candidate(P, "aa"), candidate(MD, "m-0", load=0.5), candidate(MD, "m-1"))
    found = main_for(SINGULAR, sight(candidate(P), candidate(RLD), *others), request(), AUTO)
    assert found is not None
    assert found.instance.id == "m-1"
    assert main_for(SINGULAR, sight(candidate(P, incarnation=2), candidate(RLD), *others[1:]), request(), AUTO) is None
