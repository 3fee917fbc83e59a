"""Gives each request its plan: gathers what routing has to see, asks it, and has a request wait for a relay where it must.

Made by `mesh`. Owns what the gateway has learnt for routing (`Books`), and the queue for relays. Decides nothing itself: that is
`gateway.routing`'s. What becomes of a plan while its request runs is `course`'s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.generation import GenerationSpec
from gateway.mesh.instances import InstanceView
from gateway.mesh.peer import Peer
from gateway.mesh.prefill_link import PrefillLink
from gateway.mesh.relay_queue import RelayQueue
from gateway.routing.goodput import LinkBook
from gateway.routing.lengths import LengthBook
from gateway.routing.plan import Plan, Wait
from gateway.routing.prefill_rates import PrefillRates
from gateway.routing.router import decide
from gateway.routing.sessions import SessionBook
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Candidate, RouteRequest, Snapshot
from pdd.catalog.base import Registration, Role
from pdd.catalog.index import PrefixIndex
from pdd.identity import RequestId
from pdd.kv.hashing import chain_hashes


@dataclass(slots=True)
class Books:
    """What the requests before have taught."""

    links: LinkBook
    lengths: LengthBook = field(default_factory=LengthBook)
    sessions: SessionBook = field(default_factory=SessionBook)
    rates: PrefillRates = field(default_factory=PrefillRates)
    unanswered_tokens: Counter[str] = field(default_factory=Counter)  # by prefill: sent, and no first token seen


@dataclass(frozen=True, slots=True)
class Planned:
    """A request's plan, and what it was decided on."""

    request: RequestId
    plan: Plan
    asked: RouteRequest
    hashes: tuple[int, ...]  # of the prompt's full blocks


class Planner:
    def __init__(
        self, view: InstanceView, index: PrefixIndex, policy: RoutePolicy, books: Books, *, salt: str, queue_bound: int
    ) -> None:
        self.policy = policy
        self.books = books
        self._view = view
        self._index = index
        self._salt = salt
        self._queue = RelayQueue(queue_bound, policy.ttft_budget_s)

    @property
    def waiting(self) -> int:
        """Requests that wait for a relay."""
        return len(self._queue)

    def relay_changed(self) -> None:
        """A relay has told its load, or a request has ended."""
        self._queue.wake()

    async def plan(self, request: RequestId, spec: GenerationSpec) -> Planned:
        """Raises MeshError NO_INSTANCE, OVERLOADED."""
        books, hashes = self.books, self._hashes(spec.prompt)
        session = books.sessions.claim(hashes)
        try:
            expected = books.lengths.expected(None, spec.sampling.max_tokens, spec.expected_tokens)
            asked = RouteRequest(len(spec.prompt), spec.sampling.max_tokens, expected, session)
            plan = await self._queue.plan(partial(self._decide, asked, hashes))
        except BaseException:
            books.sessions.ended(hashes, session)
            raise
        books.unanswered_tokens[plan.prefill.instance.id] += _to_compute(plan, len(spec.prompt))
        if plan.main is not None:
            books.links.promise(request, (plan.prefill.site, plan.main.site), plan.missing_bytes)
        return Planned(request, plan, asked, hashes)

    def answered(self, planned: Planned) -> None:
        """The first token is there, or will never be."""
        prefill = planned.plan.prefill.instance.id
        self.books.unanswered_tokens[prefill] -= _to_compute(planned.plan, planned.asked.prompt_tokens)

    def snapshot(self, hashes: Sequence[int]) -> Snapshot:
        """What routing sees of the mesh now, for a prompt with these blocks."""
        now_s = asyncio.get_running_loop().time()
        peers = self._view.ready()
        self._note_round_trips(peers)
        candidates = [self._candidate(peer, hashes, now_s) for peer in peers]
        return Snapshot(candidates, self.books.links.prior, self.books.links.links(now_s))

    def _decide(self, asked: RouteRequest, hashes: Sequence[int], waited_s: float) -> Plan | Wait:
        return decide(self.snapshot(hashes), replace(asked, waited_s=waited_s), self.policy)

    def _hashes(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Empty while nobody is there to tell how long a block is."""
        registration = next(iter(self._view.registrations()), None)
        return () if registration is None else chain_hashes(prompt, registration.layout.block_tokens, self._salt)

    def _candidate(self, peer: Peer, hashes: Sequence[int], now_s: float) -> Candidate:
        registration, link = peer.registration, peer.link
        assert link is not None
        instance = registration.instance
        cached_tokens = self._cached(registration, hashes)
        if isinstance(link, PrefillLink):
            return Candidate(
                registration,
                link.load(now_s),
                link.in_flight,
                cached_tokens,
                queued_tokens=link.queued_tokens,
                unanswered_tokens=self.books.unanswered_tokens[instance.id],
                prefill_tokens_s=self.books.rates.rate(instance.id),
            )
        told = link.decoder_load
        return Candidate(
            registration,
            link.load(now_s),
            link.in_flight,
            cached_tokens,
            step_s=0.0 if told is None else told.step_s,
            kv_used=0.0 if told is None else told.kv_used,
        )

    def _cached(self, registration: Registration, hashes: Sequence[int]) -> int:
        if registration.role is Role.RELAY:
            return 0
        return self._index.longest(hashes, registration.instance) * registration.layout.block_tokens

    def _note_round_trips(self, peers: Sequence[Peer]) -> None:
        """Between this gateway and each main, which stands for the line from the prefills' site."""
        sites = {peer.registration.site for peer in peers if peer.registration.role is Role.PREFILL}
        for peer in peers:
            link = peer.link
            if peer.registration.role is not Role.MAIN or link is None or link.greeting_s is None:
                continue
            for site in sites - link.sites_told:
                link.sites_told.add(site)
                self.books.links.round_trip((site, peer.registration.site), link.greeting_s)


def _to_compute(plan: Plan, prompt_tokens: int) -> int:
    return prompt_tokens - plan.prefill_hit_tokens
