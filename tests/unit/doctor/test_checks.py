from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.catalog.base import Role
from pdd.catalog.prefixes import CacheState
from pdd.doctor.checks import examine
from pdd.doctor.facts import (
    CacheLook,
    Claims,
    Facts,
    GatewayAway,
    GatewayFacts,
    Goodput,
    InstanceFacts,
    RedisAway,
    RedisFacts,
    Silence,
    Unmeasured,
    Unreached,
)
from pdd.doctor.findings import Check, Finding, Severity
from pdd.identity import Instance
from tests.unit.doctor.facts import AGREEING, CLAIMS, LAYOUT, STATE, facts, instance, registration, reporting

MAIN = instance(Role.MAIN)
RELAY = instance(Role.RELAY)
PREFILL = instance(Role.PREFILL)


def only(found: Facts, claims: Claims = CLAIMS) -> Finding:
    (finding,) = examine(found, claims)
    assert finding.do
    return finding


def named(found: Facts, claims: Claims = CLAIMS) -> tuple[Severity, Check, str]:
    finding = only(found, claims)
    return finding.severity, finding.check, finding.subject


def silent(one: InstanceFacts, silence: Silence) -> InstanceFacts:
    return InstanceFacts(one.registration, Unreached(silence, "why"))


def test_nothing_is_found_where_all_is_well() -> None:
    assert examine(facts(), CLAIMS) == ()


def test_a_redis_that_is_away_is_the_one_finding() -> None:
    finding = only(Facts(RedisAway("registry at redis://redis:6379/0 can't be used: refused")))
    assert (finding.severity, finding.check) == (Severity.FAULT, Check.REDIS_AWAY)
    assert "redis://redis:6379/0" in finding.what
    assert "PDD_REDIS_URL" in finding.do


@pytest.mark.parametrize(
    ("redis", "check"),
    [
        (RedisFacts("r", 0.2, 10, 0, "noeviction", 0), Check.REDIS_SLOW),
        (RedisFacts("r", 0.001, 10, 100, "allkeys-lru", 5), Check.REDIS_EVICTS),
        (RedisFacts("r", 0.001, 95, 100, "noeviction", 0), Check.REDIS_FULL),
    ],
)
def test_a_redis_that_is_there_and_not_fit_is_a_warning(redis: RedisFacts, check: Check) -> None:
    assert named(replace(facts(), redis=redis)) == (Severity.WARNING, check, "redis")


def test_a_policy_that_evicts_does_no_harm_without_a_limit() -> None:
    assert examine(replace(facts(), redis=RedisFacts("r", 0.001, 10, 0, "allkeys-lru", 0)), CLAIMS) == ()


def without(role: Role) -> Facts:
    well = facts()
    kept = tuple(one for one in well.instances if one.registration.role is not role)
    look = tuple(one.registration for one in kept)
    return replace(well, instances=kept, looks=(look, look))


@pytest.mark.parametrize("role", [Role.PREFILL, Role.MAIN])
def test_a_role_that_every_request_needs_is_a_fault_where_nobody_has_it(role: Role) -> None:
    assert named(without(role)) == (Severity.FAULT, Check.ROLE_MISSING, role.value)


def test_a_missing_relay_is_a_fault_only_where_the_pipeline_needs_one() -> None:
    assert named(without(Role.RELAY))[0] is Severity.WARNING
    assert named(without(Role.RELAY), replace(CLAIMS, needed_roles=tuple(Role)))[0] is Severity.FAULT


def test_heartbeats_that_stop_are_said_of_the_instance_and_nothing_else_is() -> None:
    well = facts(silent(MAIN, Silence.NO_ANSWER))
    gone = replace(well, looks=(well.looks[0], well.looks[0][:-1]))
    assert named(gone) == (Severity.FAULT, Check.HEARTBEAT_LOST, "main-0")


def looks_of_main(*incarnations: int) -> Facts:
    well = facts()
    others = well.looks[0][:-1]
    return replace(well, looks=tuple((*others, registration(Role.MAIN, incarnation=one)) for one in incarnations))


def test_an_instance_that_restarts_meanwhile_is_a_warning() -> None:
    assert named(looks_of_main(1, 1, 2)) == (Severity.WARNING, Check.RESTARTED, "main-0")


def test_two_processes_of_one_id_are_a_fault_that_names_both() -> None:
    finding = only(looks_of_main(2, 1, 2, 1))
    assert finding.check is Check.DUPLICATE_ID
    assert str(Instance("main-0", 1)) in finding.what
    assert str(Instance("main-0", 2)) in finding.what


@pytest.mark.parametrize(
    ("one", "silence", "check"),
    [
        (MAIN, Silence.NO_ANSWER, Check.UNREACHABLE),
        (MAIN, Silence.NOBODY, Check.UNREACHABLE),  # what lies between may refuse for it
        (RELAY, Silence.NO_ANSWER, Check.UNREACHABLE),
        (RELAY, Silence.NOBODY, Check.WRONG_ADDRESS),
        (RELAY, Silence.NO_DIAGNOSTICS, Check.OTHER_VERSION),
    ],
)
def test_an_instance_that_does_not_answer_is_named_with_its_address(one: InstanceFacts, silence: Silence, check: Check) -> None:
    finding = only(facts(silent(one, silence)))
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, check, one.registration.instance.id)
    assert one.registration.address in finding.what


def test_an_address_that_leads_to_another_names_the_other() -> None:
    finding = only(facts(reporting(Role.RELAY, instance=Instance("prefill-0", 1), role="prefill")))
    assert (finding.check, finding.subject) == (Check.WRONG_ADDRESS, "relay-0")
    assert "prefill prefill-0" in finding.what
    assert "PDD_ADVERTISE" in finding.do


@pytest.mark.parametrize("changes", [{"instance": Instance("main-0", 9)}, {"role": "relay"}])
def test_who_answers_must_be_of_the_registered_incarnation_and_role(changes: dict[str, object]) -> None:
    assert named(facts(reporting(Role.MAIN, **changes))) == (Severity.FAULT, Check.WRONG_ADDRESS, "main-0")


def test_layouts_that_cannot_exchange_blocks_are_named_with_both_values() -> None:
    finding = only(facts(instance(Role.MAIN, replace(LAYOUT, block_tokens=32))))
    assert (finding.check, finding.subject) == (Check.LAYOUT_MISMATCH, "main-0")
    assert "prefill-0" in finding.what
    assert "block_tokens: 16 against 32" in finding.what


def test_what_an_instance_says_of_its_layout_counts_above_what_it_registered() -> None:
    assert named(facts(reporting(Role.MAIN, layout=replace(LAYOUT, block_tokens=32)))) == (
        Severity.FAULT,
        Check.LAYOUT_MISMATCH,
        "main-0",
    )


def test_another_model_than_the_gateways_is_a_mismatch_of_that_instance() -> None:
    finding = only(facts(instance(Role.RELAY, replace(LAYOUT, tokenizer_digest="other"))))
    assert (finding.check, finding.subject) == (Check.LAYOUT_MISMATCH, "relay-0")
    assert "give it" in finding.do


def test_where_all_serve_another_model_the_gateway_is_the_one_to_change() -> None:
    findings = examine(facts(), replace(CLAIMS, model_digest="other"))
    assert {finding.check for finding in findings} == {Check.LAYOUT_MISMATCH}
    assert all("give the gateway" in finding.do for finding in findings)


def test_an_instance_that_the_registry_refused_is_a_mismatch_until_it_has_joined() -> None:
    why = "main main-1 (main:1, site b) can't join beside prefill prefill-0: block_tokens: 32 against 16"
    finding = only(replace(facts(), refused={"main-1": why}))
    assert (finding.check, finding.subject) == (Check.LAYOUT_MISMATCH, "main-1")
    assert why in finding.what
    assert examine(replace(facts(), refused={"main-0": why}), CLAIMS) == ()


@pytest.mark.parametrize("offset_s", [5.0, -5.0])
def test_a_wall_clock_that_is_off_is_a_fault_with_its_offset(offset_s: float) -> None:
    finding = only(facts(reporting(Role.MAIN, clock_offset_s=offset_s)))
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.CLOCK_SKEW, "main-0")
    assert ("5.0 s ahead of" if offset_s > 0 else "5.0 s behind") in finding.what


def test_a_clock_is_only_off_by_what_the_round_trip_does_not_explain() -> None:
    assert examine(facts(reporting(Role.MAIN, clock_offset_s=1.9, round_trip_s=2.0)), CLAIMS) == ()


def linked(found: Goodput | Unmeasured) -> Facts:
    return facts(replace(MAIN, link=found))


def test_a_line_at_a_tenth_of_its_rate_is_a_fault_with_both_figures() -> None:
    finding = only(linked(Goodput(625_000, 900_000)))
    assert (finding.severity, finding.check, finding.subject) == (Severity.FAULT, Check.LINK_SLOW, "main-0")
    assert "5.0 Mbit/s" in finding.what
    assert "PDD_WAN_MBIT says 50" in finding.what


def test_a_line_that_is_half_taken_by_requests_is_no_fault() -> None:
    assert examine(linked(Goodput(3_000_000, 5_000_000)), CLAIMS) == ()


def test_a_line_on_which_nothing_came_is_slow() -> None:
    assert named(linked(Goodput(0.0, 0)))[1] is Check.LINK_SLOW


def test_a_line_that_carries_far_more_than_is_claimed_is_a_warning() -> None:
    assert named(linked(Goodput(125e6, 16 << 20))) == (Severity.WARNING, Check.LINK_FAST, "main-0")


def test_a_line_that_could_not_be_measured_is_a_warning() -> None:
    assert named(linked(Unmeasured("another probe runs"))) == (Severity.WARNING, Check.LINK_UNMEASURED, "main-0")


OTHER = (4, 0xDEF)
BEHIND = CacheLook(STATE, (3, 0xABC), OTHER)


def caching(*looks: CacheLook) -> Facts:
    return facts(replace(MAIN, cache_looks=looks))


def test_a_catalog_that_stands_still_beside_another_cache_is_a_warning() -> None:
    finding = only(caching(BEHIND, BEHIND))
    assert (finding.severity, finding.check) == (Severity.WARNING, Check.CACHE_MISMATCH)
    assert "4 blocks" in finding.what
    assert str(STATE) in finding.what


def test_a_catalog_that_moves_along_or_catches_up_is_well() -> None:
    moved = replace(BEHIND, published=CacheState(8, 3, 0xABC))
    assert examine(caching(BEHIND, moved), CLAIMS) == ()
    assert examine(caching(BEHIND, AGREEING), CLAIMS) == ()


def test_a_cache_that_was_never_published_is_a_warning() -> None:
    nothing = CacheLook(None, (0, 0), OTHER)
    assert named(caching(nothing, nothing))[1] is Check.CACHE_UNPUBLISHED


def test_a_catalog_that_does_not_hold_what_it_says_is_a_mismatch() -> None:
    torn = CacheLook(STATE, (2, 0x1), (3, 0xABC))
    finding = only(caching(torn, torn))
    assert finding.check is Check.CACHE_MISMATCH
    assert "pdd:cached:*" in finding.do


def test_a_gateway_that_is_away_not_ready_or_degraded_is_named() -> None:
    away = replace(facts(), gateway=GatewayAway("http://127.0.0.1:8000", "refused"))
    assert named(away) == (Severity.FAULT, Check.GATEWAY_AWAY, "gateway")
    missing = replace(facts(), gateway=GatewayFacts("u", missing=("main",)))
    assert named(missing) == (Severity.FAULT, Check.GATEWAY_NOT_READY, "gateway")
    degraded = replace(facts(), gateway=GatewayFacts("u", degraded=("prefix catalog: away",)))
    assert named(degraded) == (Severity.WARNING, Check.GATEWAY_DEGRADED, "gateway")


def test_a_gateway_that_was_not_asked_is_no_finding() -> None:
    assert examine(replace(facts(), gateway=None), CLAIMS) == ()


def test_faults_come_before_warnings() -> None:
    found = replace(linked(Goodput(625_000, 900_000)), redis=RedisFacts("r", 0.2, 10, 0, "noeviction", 0))
    assert [finding.severity for finding in examine(found, CLAIMS)] == [Severity.FAULT, Severity.WARNING]
