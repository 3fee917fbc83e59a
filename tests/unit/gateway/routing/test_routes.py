from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.routes import best_route
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, Link, RouteRequest, Snapshot
from pdd.catalog.base import Role
from pdd.identity import Instance
from tests.unit.gateway.instances import LAYOUT
from tests.unit.gateway.routing.sight import LINK, MD, RLD, P, candidate, request, sight

AUTO, RELAY, DIRECT = RoutePolicy(), RoutePolicy(pipeline=Pipeline.RELAY), RoutePolicy(pipeline=Pipeline.DIRECT)


def chosen(snapshot: Snapshot, asked: RouteRequest | None = None, policy: RoutePolicy = AUTO) -> tuple[str, str | None, str]:
    route = best_route(snapshot, asked or request(), policy)
    return route.prefill.id, None if route.relay is None else route.relay.id, route.main.id


def main_of(*mains: Candidate, asked: RouteRequest | None = None) -> str:
    return chosen(sight(candidate(P), *mains), asked)[2]


@pytest.mark.parametrize(
    ("mains", "expected"),
    [
        ([candidate(MD, "b"), candidate(MD, "a")], "a"),  # a tie goes by id
        ([candidate(MD, "a", load=0.5), candidate(MD, "b", load=0.25)], "b"),
        ([candidate(MD, "a", in_flight=3), candidate(MD, "b", load=0.25)], "b"),  # no report covers the 3 yet
        ([candidate(MD, "a", in_flight=3, slots=64), candidate(MD, "b", load=0.25)], "a"),
        ([candidate(MD, "a"), candidate(MD, "b", load=0.1, cached_tokens=32_768)], "b"),  # worth 2 s of the line
        ([candidate(MD, "a"), candidate(MD, "b", load=0.125, cached_tokens=32)], "a"),  # worth nothing
        ([candidate(MD, "a"), candidate(MD, "b", load=0.9, cached_tokens=65_536)], "a"),  # beyond the bound
    ],
)
def test_main_is_chosen_by_hit_and_load(mains: list[Candidate], expected: str) -> None:
    assert main_of(*mains) == expected


def test_prefill_is_chosen_by_hit_and_queue() -> None:
    def prefill(hit: int, queued: int) -> str:
        warm = candidate(P, "warm", cached_tokens=hit, queued_tokens=queued)
        return chosen(sight(warm, candidate(P, "cold"), candidate(MD)))[0]

    assert prefill(0, 1) == "cold"
    assert prefill(32_768, 60_000) == "warm"  # computing it again would take less time, but from those behind it as well
    assert prefill(32_768, 150_000) == "cold"


def test_what_was_just_sent_to_a_prefill_counts_as_queued() -> None:
    asked = replace(candidate(P, "a"), unanswered_tokens=1000)
    assert chosen(sight(asked, candidate(P, "b", queued_tokens=500), candidate(MD)))[0] == "b"


def test_a_slower_line_costs_its_main() -> None:
    far = candidate(MD, "a")
    far = replace(far, registration=replace(far.registration, site="c"))
    snapshot = sight(candidate(P), far, candidate(MD, "b"))
    assert chosen(snapshot)[2] == "a"
    slow = replace(snapshot, links={**snapshot.links, ("a", "c"): Link(LINK.goodput_bytes_s / 2)})
    assert chosen(slow)[2] == "b"


# ── conversations ──

HOME = Instance("home", 1)


@pytest.mark.parametrize(
    ("load", "incarnation", "expected"),
    [
        (0.0, 1, "home"),
        (0.9, 1, "home"),  # more than its share, but a slot is free
        (1.0, 1, "other"),
        (0.0, 2, "other"),  # has been restarted, and has lost its cache
    ],
)
def test_a_conversation_stays_with_its_main_while_that_has_a_slot(load: float, incarnation: int, expected: str) -> None:
    mains = candidate(MD, "home", load=load, incarnation=incarnation), candidate(MD, "other", cached_tokens=4096)
    assert main_of(*mains, asked=request(session_main=HOME)) == expected


@pytest.mark.parametrize(
    ("session_main", "queued_tokens", "expected"),
    [
        (HOME, 0, "warm"),  # more than its share of the requests, but a conversation's history is nobody else's
        (HOME, 150_000, "cold"),  # done sooner, with all that must be computed again
        (None, 0, "cold"),  # what hits may be in everybody's prompt
    ],
)
def test_a_conversation_goes_where_prefill_has_its_history_unless_the_queue_is_long(
    session_main: Instance | None, queued_tokens: int, expected: str
) -> None:
    warm = candidate(P, "warm", in_flight=4, cached_tokens=32_768, queued_tokens=queued_tokens)
    assert chosen(sight(warm, candidate(P, "cold"), candidate(MD)), request(session_main=session_main))[0] == expected


# ── the bound ──


@given(
    loads=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    hits=st.lists(st.integers(0, 65_536), min_size=12, max_size=12),
    slots=st.sampled_from([8, 32]),
)
def test_no_hit_takes_an_instance_beyond_its_share(loads: list[int], hits: list[int], slots: int) -> None:
    everyone = [
        candidate(role, f"{role.value}-{at}", in_flight=load, cached_tokens=hit, slots=slots)
        for role in (P, MD)
        for at, (load, hit) in enumerate(zip(loads, hits, strict=False))
    ]
    route = best_route(sight(*everyone), request(), DIRECT)
    mean = (sum(loads) + 1) / len(loads)
    for one in (route.prefill, route.main):
        assert one.requests + 1 <= max(AUTO.load_bound * mean, AUTO.free_share * slots) + 1


# ── who can serve ──


@pytest.mark.parametrize(
    ("policy", "missing"), [(RELAY, P), (RELAY, RLD), (RELAY, MD), (DIRECT, P), (DIRECT, MD), (AUTO, P), (AUTO, MD)]
)
def test_the_role_that_is_missing_is_named(policy: RoutePolicy, missing: Role) -> None:
    present = [candidate(role) for role in Role if role is not missing]
    with pytest.raises(MeshError, match=f"no {missing.value} instance is connected") as raised:
        best_route(sight(*present), request(), policy)
    assert raised.value.code is MeshErrorCode.NO_INSTANCE


def test_a_role_that_is_missing_is_named_before_a_context_that_is_too_small() -> None:
    with pytest.raises(MeshError, match="no main instance is connected"):
        best_route(sight(candidate(P, context_tokens=100)), request(1000), AUTO)


def test_the_context_must_hold_prompt_and_answer() -> None:
    short, asked = candidate(MD, "a", context_tokens=1999), request(1000, max_tokens=1000)
    assert main_of(short, candidate(MD, "b", load=0.9), asked=asked) == "b"
    with pytest.raises(MeshError, match="no main instance holds 2000 tokens, the largest 1999"):
        best_route(sight(candidate(P), short), asked, AUTO)


@pytest.mark.parametrize("policy", [RELAY, AUTO])
def test_only_compatible_instances_are_paired(policy: RoutePolicy) -> None:
    other = replace(LAYOUT, block_tokens=32)
    everyone = [
        candidate(P, "p-16", load=0.5),
        candidate(P, "p-32", layout=other),
        candidate(RLD, "r-16", load=0.5),
        candidate(RLD, "r-32", layout=other),
        candidate(MD, "m-16"),
    ]
    # The idlest prefill has a relay but no main that could take its KV.
    assert chosen(sight(*everyone), policy=policy) == ("p-16", "r-16", "m-16")


def test_a_prefill_that_has_a_relay_is_preferred() -> None:
    other = replace(LAYOUT, block_tokens=32)
    everyone = [candidate(P, "p-16", load=0.5), candidate(P, "p-32", layout=other)]
    everyone += [candidate(RLD), candidate(MD, "m-16"), candidate(MD, "m-32", layout=other)]
    assert chosen(sight(*everyone)) == ("p-16", "relay-0", "m-16")


@pytest.mark.parametrize("policy", [DIRECT, AUTO])
def test_both_sides_that_do_not_fit_are_named(policy: RoutePolicy) -> None:
    present = [candidate(P), candidate(RLD), candidate(MD, layout=replace(LAYOUT, block_tokens=32))]
    text = r"no main instance can take KV from prefill prefill-0.*main main-0.*block_tokens: 16 against 32"
    with pytest.raises(MeshError, match=text):
        best_route(sight(*present), request(), policy)
