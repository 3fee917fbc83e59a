"""One prefix is in nine of ten prompts: no instance may be pinned by it, and the hits must stay."""

import random

import pytest

from gateway.routing.settings import RoutePolicy
from tests.unit.gateway.routing.fleet import Arrival, Fleet
from tests.unit.gateway.routing.sight import MD, P

HOT_TOKENS, OWN_TOKENS, UNIQUE_TOKENS = 8192, 512, 8704
REQUESTS, SERVICE_S = 1500, 4.0


def arrivals(a_second: float) -> list[Arrival]:
    chance = random.Random(7)
    found, at_s = [], 0.0
    for number in range(REQUESTS):
        at_s += chance.expovariate(a_second)
        own = (f"own-{number}", HOT_TOKENS + OWN_TOKENS)
        unique = (f"unique-{number}", UNIQUE_TOKENS)
        found.append(Arrival(at_s, [("hot", HOT_TOKENS), own] if chance.random() < 0.9 else [unique]))
    return found


@pytest.mark.parametrize("a_second", [4.0, 16.0, 28.0])  # of 4 mains with 32 slots: an eighth, half, and nearly all in use
def test_a_hot_prefix_pins_nobody_and_is_hit(a_second: float) -> None:
    fleet = Fleet(prefills=4, mains=4, limit_tokens=200_000, service_s=SERVICE_S, policy=RoutePolicy())
    fleet.run(arrivals(a_second))
    ideal = 0.9 * HOT_TOKENS / (HOT_TOKENS + OWN_TOKENS)
    for role in (P, MD):
        share, most = fleet.spread(role)
        assert share <= 1.6
        assert most <= 1.75 * a_second * SERVICE_S / 4 + 2  # the bound, over the mean's own ups
        assert fleet.hit_rate(role) >= ideal - 0.03
