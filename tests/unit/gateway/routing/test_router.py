from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.goodput import LinkBook
from gateway.routing.plan import Plan, ReasonCode, Wait
from gateway.routing.router import decide
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, Link, RouteRequest, Snapshot
from pdd.catalog.base import Role
from tests.unit.gateway.routing.sight import BLOCK_BYTES, LINK, MD, RLD, P, candidate, request, sight, trio

AUTO = RoutePolicy()


def plan(snapshot: Snapshot, asked: RouteRequest, policy: RoutePolicy = AUTO) -> Plan:
    decision = decide(snapshot, asked, policy)
    assert isinstance(decision, Plan)
    return decision


def decided(snapshot: Snapshot, asked: RouteRequest, policy: RoutePolicy = AUTO) -> tuple[Pipeline, ReasonCode]:
    found = plan(snapshot, asked, policy)
    return found.pipeline, found.reason_code


# ── the pipeline ──


@pytest.mark.parametrize(
    ("cached_tokens", "expected", "pipeline", "code"),
    [
        (65_536, 1000, Pipeline.DIRECT, ReasonCode.HIGH_HIT),
        (63_488, 1000, Pipeline.DIRECT, ReasonCode.HIGH_HIT),  # 128 blocks: 0.13 s and the round trip
        (61_440, 1000, Pipeline.RELAY, ReasonCode.LOW_HIT),
        (0, 1000, Pipeline.RELAY, ReasonCode.LOW_HIT),
        (0, 200, Pipeline.SINGULAR, ReasonCode.SINGULAR),  # 4 s on the relay, 4.2 s on the line
        (0, 215, Pipeline.RELAY, ReasonCode.LOW_HIT),
        (61_440, 5, Pipeline.RELAY, ReasonCode.LOW_HIT),  # short, but so little is no burden to the line
    ],
)
def test_what_main_lacks_decides_the_pipeline(cached_tokens: int, expected: int, pipeline: Pipeline, code: ReasonCode) -> None:
    assert decided(trio(cached_tokens), request(expected=expected)) == (pipeline, code)


def test_a_short_prompt_goes_direct_without_a_hit() -> None:
    assert decided(trio(), request(1000)) == (Pipeline.DIRECT, ReasonCode.WITHIN_BUDGET)


def test_what_prefill_has_does_not_spare_the_line() -> None:
    warm_prefill = sight(candidate(P, cached_tokens=65_536), candidate(RLD), candidate(MD))
    assert decided(warm_prefill, request()) == (Pipeline.RELAY, ReasonCode.LOW_HIT)


def test_what_prefill_lacks_is_computed_and_does_not_stall() -> None:
    warm_main = sight(candidate(P), candidate(RLD), candidate(MD, cached_tokens=65_536))
    found = plan(warm_main, request())
    assert (found.pipeline, found.missing_bytes, found.aligned_hit_tokens) == (Pipeline.DIRECT, 0, 0)


def test_only_full_blocks_cross() -> None:
    found = plan(trio(), request(16 * 3 + 15))
    assert (found.missing_tokens, found.missing_bytes) == (48, 3 * BLOCK_BYTES)


def test_a_backlog_on_the_line_turns_direct_into_relay() -> None:
    asked = request(1000)
    assert decided(trio(link=replace(LINK, backlog_bytes=200_000, transfers=4)), asked) == (Pipeline.RELAY, ReasonCode.LOW_HIT)


def test_a_tenth_of_the_goodput_turns_direct_into_relay() -> None:
    asked = request(1600)
    book = LinkBook(LINK)
    for step in range(16):  # reports of four seconds: the line falls after two
        goodput = LINK.goodput_bytes_s / (1 if step < 8 else 10)
        book.report(("a", "b"), "prefill-0", "main-0", 0 if step in (7, 15) else 10_000, goodput, step / 4)
        if step == 7:
            assert decided(trio(link=book.link(("a", "b"), step / 4)), asked)[0] is Pipeline.DIRECT
    assert decided(trio(link=book.link(("a", "b"), 3.75)), asked)[0] is Pipeline.RELAY


@given(
    lacking=st.lists(st.integers(0, 65_536), min_size=2, max_size=2), prompt=st.integers(1, 65_536), expected=st.integers(1, 1000)
)
def test_more_that_is_missing_never_turns_relay_into_direct(lacking: list[int], prompt: int, expected: int) -> None:
    less, more = sorted(lacking)
    before = decided(trio(max(0, prompt - less)), request(prompt, expected))[0]
    after = decided(trio(max(0, prompt - more)), request(prompt, expected))[0]
    assert not (before is not Pipeline.DIRECT and after is Pipeline.DIRECT)


@pytest.mark.parametrize("pipeline", [Pipeline.RELAY, Pipeline.DIRECT])
@pytest.mark.parametrize("cached_tokens", [0, 65_536])
def test_a_configured_pipeline_is_taken_whatever_is_cached(pipeline: Pipeline, cached_tokens: int) -> None:
    busy = candidate(RLD, load=2.0)  # queues at the relay, as configured
    found = decided(trio(cached_tokens, relays=[busy]), request(), RoutePolicy(pipeline=pipeline))
    assert found == (pipeline, ReasonCode.FORCED)


def test_the_relay_keeps_low_hits_for_a_benchmark_alone() -> None:
    policy = RoutePolicy(relay_alone_when_low_hit=True)
    assert decided(trio(), request(), policy) == (Pipeline.SINGULAR, ReasonCode.RELAY_ALONE)
    assert decided(trio(65_536), request(), policy)[0] is Pipeline.DIRECT


# ── relays without a slot ──


@pytest.mark.parametrize("relay", [candidate(RLD, load=1.0), candidate(RLD, in_flight=8), candidate(RLD, kv_used=0.97)])
def test_a_request_waits_for_a_relays_slot(relay: Candidate) -> None:
    decision = decide(trio(60_000, relays=[relay]), request(), AUTO)
    assert isinstance(decision, Wait)
    assert 0 < decision.at_most_s < AUTO.ttft_budget_s


def test_another_relays_slot_is_taken_instead() -> None:
    found = plan(trio(relays=[candidate(RLD, "r-0", load=1.0), candidate(RLD, "r-1", load=0.9)]), request())
    assert found.relay is not None
    assert found.relay.instance.id == "r-1"


def test_a_request_that_has_waited_goes_direct_and_says_so() -> None:
    found = plan(trio(relays=[candidate(RLD, load=1.0)]), request(waited_s=AUTO.ttft_budget_s))
    assert (found.pipeline, found.reason_code) == (Pipeline.DIRECT, ReasonCode.RELAY_FULL)
    assert "expect a stall of 4.2" in found.reason


def test_a_short_answer_waits_for_a_slot_too_and_is_never_put_on_a_full_relay() -> None:
    asked = request(36_000, expected=10)
    assert decided(trio(), asked)[0] is Pipeline.SINGULAR
    full = trio(relays=[candidate(RLD, load=1.0)])
    assert isinstance(decide(full, asked, AUTO), Wait)
    assert plan(full, replace(asked, waited_s=AUTO.ttft_budget_s)).pipeline is Pipeline.DIRECT


def test_a_full_main_is_no_reason_to_refuse_but_its_wait_for_a_slot_is_declared() -> None:
    snapshot = sight(candidate(P), candidate(RLD, load=1.0), candidate(MD, load=1.0))
    found = plan(snapshot, request(waited_s=AUTO.ttft_budget_s))
    assert (found.pipeline, found.reason_code) == (Pipeline.DIRECT, ReasonCode.RELAY_FULL)
    assert "expect a stall of 6.7" in found.reason  # 4.2 s of the line, and an eighth of an answer's 20 s


@pytest.mark.parametrize(("main_load", "declared_stall_s"), [(0.0, 1.0), (3.0, AUTO.declared_stall_s)])
def test_a_stall_too_long_to_declare_is_refused(main_load: float, declared_stall_s: float) -> None:
    snapshot = sight(candidate(P), candidate(RLD, load=1.0), candidate(MD, load=main_load))
    policy = RoutePolicy(declared_stall_s=declared_stall_s)
    with pytest.raises(MeshError, match=f"may stall for {declared_stall_s:g} s at most") as raised:
        decide(snapshot, request(waited_s=policy.ttft_budget_s), policy)
    assert raised.value.code is MeshErrorCode.OVERLOADED


@pytest.mark.parametrize("relays", [[], [candidate(RLD, context_tokens=100)]])
def test_without_a_relay_a_low_hit_goes_direct_and_says_so(relays: Sequence[Candidate]) -> None:
    found = plan(trio(relays=relays), request())
    assert (found.pipeline, found.reason_code) == (Pipeline.DIRECT, ReasonCode.NO_RELAY)
    assert "expect a stall" in found.reason


# ── every decision ──


def candidates(role: st.SearchStrategy[Role]) -> st.SearchStrategy[Candidate]:
    return st.builds(
        candidate,
        role,
        st.sampled_from("abcdefgh"),
        load=st.floats(0, 3),
        in_flight=st.integers(0, 20),
        cached_tokens=st.integers(0, 70_000),
        kv_used=st.floats(0, 1),
        queued_tokens=st.integers(0, 100_000),
        slots=st.integers(1, 64),
        context_tokens=st.sampled_from([1000, 131_072]),
    )


def decision_or_code(snapshot: Snapshot, asked: RouteRequest, policy: RoutePolicy) -> Plan | Wait | MeshErrorCode:
    try:
        return decide(snapshot, asked, policy)
    except MeshError as error:
        return error.code


@given(
    everyone=st.lists(
        candidates(st.sampled_from([P, RLD, MD])), max_size=10, unique_by=lambda one: (one.registration.role, one.id)
    ),
    link=st.builds(Link, st.floats(1, 1e10), st.integers(0, 10**10), st.floats(0, 1)),
    prompt_tokens=st.integers(1, 65_536),
    expected=st.integers(1, 1000),
    waited_s=st.floats(0, 20),
    pipeline=st.sampled_from([None, Pipeline.RELAY, Pipeline.DIRECT]),
)
def test_a_decision_is_a_whole_plan_a_wait_or_a_named_error(
    everyone: list[Candidate], link: Link, prompt_tokens: int, expected: int, waited_s: float, pipeline: Pipeline | None
) -> None:
    asked = request(prompt_tokens, expected, waited_s=waited_s)
    policy = RoutePolicy(pipeline=pipeline)
    decision = decision_or_code(sight(*everyone, link=link), asked, policy)
    if isinstance(decision, MeshErrorCode):
        assert decision is MeshErrorCode.NO_INSTANCE or (pipeline is None and decision is MeshErrorCode.OVERLOADED)
        return
    if isinstance(decision, Wait):
        assert pipeline is None
        assert decision.at_most_s > 0
        return
    roles = {
        Pipeline.DIRECT: {P, MD},
        Pipeline.RELAY: {P, RLD, MD},
        Pipeline.SINGULAR: {P, RLD},
    }
    instances = decision.instances()
    assert set(instances) == roles[decision.pipeline]
    assert all(one.role is role and one.context_tokens >= asked.tokens for role, one in instances.items())
    assert decision.header().endswith(f"; reason={decision.reason}")  # nothing in it had to be replaced
    if pipeline is None and decision.relay is not None:
        chosen = next(one for one in everyone if one.registration is decision.relay)
        assert chosen.requests < chosen.registration.slots
