"""The mesh as the public APIs see it: a `Generator` whose requests run on P, RLD and MD.

Made by `gateway.__main__`. An async context manager that owns the streams to all instances and follows the prefix catalog. Has
each request planned, starts it, and sees that leaving it releases everything; what happens in between is `request` and the
handoff machine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from gateway.generation import GenerationSpec
from gateway.handoff.agreement import sampled
from gateway.handoff.machine import HandoffMachine
from gateway.handoff.pace import Pace, PaceBook
from gateway.mesh.course import Course
from gateway.mesh.crew import Links
from gateway.mesh.instances import InstanceView
from gateway.mesh.observer import MeshObserver, Unobserved
from gateway.mesh.planner import Books, Planner
from gateway.mesh.request import RunningRequest
from gateway.mesh.settings import MeshSettings
from gateway.mesh.wiring import Wiring
from gateway.mode import HandoffMode, Leaning
from gateway.playout import Playout
from gateway.routing.goodput import LinkBook
from gateway.routing.plan import Plan
from gateway.routing.routes import needed_roles
from gateway.routing.settings import RoutePolicy
from pdd.catalog.base import Registration, Registry, Role
from pdd.catalog.follower import CatalogFollower
from pdd.catalog.prefixes import PrefixCatalog
from pdd.identity import Instance, RequestId
from pdd.model.card import ModelCard
from pdd.rpc.channel import OpenChannel, open_token_channel
from pdd.v1 import prefill_pb2


class Mesh:
    def __init__(
        self,
        settings: MeshSettings,
        registry: Registry,
        catalog: PrefixCatalog,
        card: ModelCard,
        *,
        gateway: Instance,
        observer: MeshObserver | None = None,
        dial: OpenChannel = open_token_channel,
        policy: RoutePolicy | None = None,
    ) -> None:
        """`gateway` is this process; its incarnation must be drawn anew at every start, since request identities rest on it.

        `policy` overrides what `settings` say of routing.
        """
        self._settings = settings
        self._policy = policy or settings.route_policy()
        self._gateway = gateway
        self._observer = observer or Unobserved()
        wiring = Wiring(gateway, settings, self._observer, dial, self._on_links, self._on_relay_load)
        self._view = InstanceView(registry, card, wiring)
        self._follower = CatalogFollower(catalog, self._view.registrations)
        self._planner = Planner(
            self._view,
            self._follower.index,
            self._policy,
            Books(LinkBook(settings.line_prior())),
            salt=settings.tenant_salt,
            queue_bound=settings.waiting_requests,
        )
        self._counter = itertools.count(1)
        self._paces = PaceBook(Pace())
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.create_task(self._view.run(), name="instance view")
        self._following = self._tasks.create_task(self._follower.run(), name="catalog follower")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._following.cancel()
        self._view.close()
        await self._tasks.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def generate(self, spec: GenerationSpec) -> AsyncIterator[RunningRequest]:
        """Start a request. Raises MeshError NO_INSTANCE where a role has nobody to serve it, OVERLOADED where all are full."""
        number, asked_s = next(self._counter), asyncio.get_running_loop().time()
        planned = await self._planner.plan(RequestId(self._gateway.incarnation, number), spec)
        course = Course(self._planner, planned)
        plan = planned.plan
        self._observer.queued(asyncio.get_running_loop().time() - asked_s)
        self._observer.planned(plan, len(spec.prompt))
        request = self._request(planned.request, spec, course)
        try:
            request.start()
            yield request
        finally:
            request.leave()
            if plan.relay is not None and plan.main is not None:
                self._paces.learn(plan.relay.instance.id, plan.main.instance.id, request.measured)

    def missing_roles(self) -> tuple[str, ...]:
        """Roles that requests need and no connected instance fills."""
        present = {registration.role for registration in self._view.registrations()}
        return tuple(role.value for role in needed_roles(self._policy.pipeline) if role not in present)

    def degraded(self) -> tuple[str, ...]:
        """What is not as it should be, while requests are served all the same."""
        found: list[str] = []
        if not self.catalog_synced:
            found.append(f"prefix catalog: {self._follower.reason}; prefix hits may be missed")
        if self._policy.pipeline is None and all(one.role is not Role.RELAY for one in self._view.registrations()):
            found.append("no relay is connected: answers stall after their first token where main lacks much of the prompt")
        return tuple(found)

    @property
    def catalog_synced(self) -> bool:
        """The gateway knows what every instance has published of its prefix cache."""
        return self._follower.synced

    def connected(self) -> int:
        """Instances that can be given a request now."""
        return len(self._view.ready())

    def context_tokens(self) -> int | None:
        """The longest request, prompt and output together, that can be placed now; None while a role is missing."""
        registrations = self._view.registrations()
        needed = needed_roles(self._policy.pipeline)
        longest = (max((one.context_tokens for one in registrations if one.role is role), default=None) for role in needed)
        present = [tokens for tokens in longest if tokens is not None]
        return min(present) if len(present) == len(needed) else None

    def _request(self, request: RequestId, spec: GenerationSpec, course: Course) -> RunningRequest:
        plan = course.plan
        leaning, pace = self._pace(plan)
        playout = Playout(pace.round_trip_s, pace.relay_interval_s) if _hides_switch(plan, spec) else None
        score = sampled(request.counter, self._settings.agreement_sample)
        machine = HandoffMachine(plan.pipeline, leaning, self._settings.policy(pace), score=score)
        links = Links(self._view.prefill_link, self._view.decode_link, self._view.leaning)
        return RunningRequest(request, spec, course, links, machine, playout, self._settings, self._observer)

    def _pace(self, plan: Plan) -> tuple[Leaning, Pace]:
        if plan.relay is None:
            return Leaning(HandoffMode.ONE_SHOT), Pace()  # never looked at, unless a relay joins
        relay, main = plan.relay.instance, plan.main
        leaning = self._view.leaning(relay)
        if main is None:
            return leaning, Pace()
        greeting_s = self._view.decode_link(main.instance).greeting_s
        return leaning, self._paces.pace(relay.id, main.instance.id, greeting_s)

    def _on_links(self, prefill: Registration, loads: Sequence[prefill_pb2.LinkLoad]) -> None:
        now_s = asyncio.get_running_loop().time()
        for load in loads:
            site = self._view.main_site(load.target)
            if site is not None:
                line = (prefill.site, site)
                links = self._planner.books.links
                ends = prefill.instance.id, load.target
                links.report(line, *ends, load.backlog_bytes, load.goodput_bytes_s, now_s, load.transfers)

    def _on_relay_load(self) -> None:
        self._planner.relay_changed()


def _hides_switch(plan: Plan, spec: GenerationSpec) -> bool:
    return spec.streaming and plan.relay is not None and plan.main is not None
