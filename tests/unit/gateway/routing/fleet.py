"""A fleet on paper: decisions made one after the other, their requests ending later, and what each cache keeps."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.routing.plan import Plan
from gateway.routing.router import decide
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, RouteRequest
from pdd.catalog.base import Registration, Role
from tests.unit.gateway.routing.sight import MD, RLD, P, candidate, sight


@dataclass(slots=True)
class Member:
    """An instance with an LRU cache of prefixes by name, each of so many tokens."""

    registration: Registration
    limit_tokens: int
    in_flight: int = 0
    served: int = 0
    most_in_flight: int = 0
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def hit(self, prefixes: Sequence[tuple[str, int]]) -> int:
        return max((end for name, end in prefixes if name in self.cached), default=0)

    def begin(self) -> None:
        self.in_flight += 1
        self.served += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def keep(self, prefixes: Sequence[tuple[str, int]]) -> None:
        before = 0
        for name, end in prefixes:
            self.cached[name] = end - before
            before = end
        for name, _ in reversed(prefixes):  # an ancestor is never older than its descendants
            self.cached.move_to_end(name)
        while sum(self.cached.values()) > self.limit_tokens:
            self.cached.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prefixes: Sequence[tuple[str, int]]  # name, and the token at which it ends; each goes on from the one before


class Fleet:
    """Requests hold both their instances for `service_s`; caches have a prompt from its first token on."""

    def __init__(self, prefills: int, mains: int, limit_tokens: int, service_s: float, policy: RoutePolicy) -> None:
        self.members = [
            Member(candidate(role, f"{role.value}-{at}", slots=32).registration, limit_tokens)
            for role, count in ((P, prefills), (MD, mains), (RLD, 4))
            for at in range(count)
        ]
        self.prompt_tokens = 0
        self.hit_tokens = {P: 0, MD: 0}
        self._service_s = service_s
        self._policy = policy
        self._ends: list[tuple[float, int, Plan, Sequence[tuple[str, int]]]] = []

    def run(self, arrivals: Sequence[Arrival]) -> None:
        for number, arrival in enumerate(arrivals):
            while self._ends and self._ends[0][0] <= arrival.at_s:
                self._end(heapq.heappop(self._ends)[2])
            plan = self._decide(arrival)
            for member in self._of(plan):
                if member.registration.role is not RLD:
                    self.hit_tokens[member.registration.role] += member.hit(arrival.prefixes)
                    member.keep(arrival.prefixes)
                member.begin()
            self.prompt_tokens += arrival.prefixes[-1][1]
            heapq.heappush(self._ends, (arrival.at_s + self._service_s, number, plan, arrival.prefixes))

    def spread(self, role: Role) -> tuple[float, int]:
        """Most served by the mean, and the most that one instance had at once."""
        served = [member.served for member in self.members if member.registration.role is role]
        most = max(member.most_in_flight for member in self.members if member.registration.role is role)
        return max(served) * len(served) / sum(served), most

    def hit_rate(self, role: Role) -> float:
        return self.hit_tokens[role] / self.prompt_tokens

    def _decide(self, arrival: Arrival) -> Plan:
        seen = [self._seen(member, arrival) for member in self.members]
        plan = decide(sight(*seen), RouteRequest(arrival.prefixes[-1][1], 1000, 1000), self._policy)
        assert isinstance(plan, Plan)
        return plan

    def _seen(self, member: Member, arrival: Arrival) -> Candidate:
        found = Candidate(member.registration, 0.0, member.in_flight)
        return found if member.registration.role is RLD else replace(found, cached_tokens=member.hit(arrival.prefixes))

    def _of(self, plan: Plan) -> list[Member]:
        chosen = {one.instance.id for one in plan.instances().values()}
        return [member for member in self.members if member.registration.instance.id in chosen]

    def _end(self, plan: Plan) -> None:
        for member in self._of(plan):
            member.in_flight -= 1
