from dataclasses import replace

import pytest

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.placement import Candidate, Placement, place
from pdd.catalog.base import Role
from tests.unit.gateway.instances import LAYOUT, registration

P, RLD, MD = Role.PREFILL, Role.RELAY, Role.MAIN
TOKENS = 1000


def candidate(role: Role, name: str = "", load: float = 0.0, in_flight: int = 0, **different: object) -> Candidate:
    return Candidate(registration(role, name, **different), load, in_flight)  # type: ignore[arg-type]


def ids(placement: Placement) -> dict[Role, str]:
    return {role: one.instance.id for role, one in placement.instances().items()}


@pytest.mark.parametrize(
    ("mains", "chosen"),
    [
        ([candidate(MD, "b"), candidate(MD, "a")], "a"),  # a tie goes by id
        ([candidate(MD, "a", load=0.5), candidate(MD, "b", load=0.25)], "b"),
        ([candidate(MD, "a", in_flight=3), candidate(MD, "b", load=0.25)], "b"),  # 3 of 8 slots, no report covers them yet
        ([candidate(MD, "a", in_flight=3, slots=64), candidate(MD, "b", load=0.25)], "a"),
    ],
)
def test_placement_takes_the_least_loaded(mains: list[Candidate], chosen: str) -> None:
    assert ids(place([candidate(P), candidate(RLD), *mains], Pipeline.RELAY, TOKENS))[MD] == chosen


def test_direct_needs_no_relay() -> None:
    placement = place([candidate(P), candidate(MD), candidate(RLD)], Pipeline.DIRECT, TOKENS)
    assert ids(placement) == {P: "prefill-0", MD: "main-0"}


@pytest.mark.parametrize("missing", Role)
def test_placement_names_the_role_that_is_missing(missing: Role) -> None:
    present = [candidate(role) for role in Role if role is not missing]
    with pytest.raises(MeshError, match=f"no {missing.value} instance is connected") as raised:
        place(present, Pipeline.RELAY, TOKENS)
    assert raised.value.code is MeshErrorCode.NO_INSTANCE


def test_placement_wants_a_context_that_holds_the_request() -> None:
    short = candidate(MD, "a", context_tokens=TOKENS - 1)
    assert ids(place([candidate(P), short, candidate(MD, "b", load=0.9)], Pipeline.DIRECT, TOKENS))[MD] == "b"
    with pytest.raises(MeshError, match="no main instance holds 1000 tokens, the largest 999"):
        place([candidate(P), short], Pipeline.DIRECT, TOKENS)


def test_placement_pairs_compatible_instances_only() -> None:
    other = replace(LAYOUT, block_tokens=32)
    everyone = [
        candidate(P, "p-16", load=0.5),
        candidate(P, "p-32", layout=other),
        candidate(RLD, "r-16", load=0.5),
        candidate(RLD, "r-32", layout=other),
        candidate(MD, "m-16"),
    ]
    # The idlest prefill has a relay but no main that could take its KV.
    assert ids(place(everyone, Pipeline.RELAY, TOKENS)) == {P: "p-16", RLD: "r-16", MD: "m-16"}


def test_placement_names_both_sides_that_do_not_fit() -> None:
    present = [candidate(P), candidate(MD, layout=replace(LAYOUT, block_tokens=32))]
    with pytest.raises(
        MeshError, match=r"no main instance can take KV from prefill prefill-0.*main main-0.*block_tokens: 16 against 32"
    ):
        place(present, Pipeline.DIRECT, TOKENS)
