"""The mesh as the public APIs see it: a `Generator` whose requests run on P, RLD and MD.

Made by `gateway.__main__`. An async context manager that owns the streams to all instances. Places each request, starts it, and
sees that leaving it releases everything; what happens in between is `request` and the handoff machine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from gateway.generation import GenerationSpec
from gateway.handoff.agreement import sampled
from gateway.handoff.machine import HandoffMachine
from gateway.handoff.pace import Pace, PaceBook
from gateway.mesh.instances import InstanceView
from gateway.mesh.observer import MeshObserver, Unobserved
from gateway.mesh.request import Links, RunningRequest
from gateway.mesh.settings import MeshSettings
from gateway.mesh.wiring import Wiring
from gateway.mode import HandoffMode, Leaning
from gateway.placement import Placement, decoder_roles, place
from gateway.playout import Playout
from pdd.catalog.base import Registry, Role
from pdd.identity import Instance, RequestId
from pdd.model.card import ModelCard
from pdd.rpc.channel import OpenChannel, open_token_channel


class Mesh:
    def __init__(
        self,
        settings: MeshSettings,
        registry: Registry,
        card: ModelCard,
        *,
        gateway: Instance,
        observer: MeshObserver | None = None,
        dial: OpenChannel = open_token_channel,
    ) -> None:
        """`gateway` is this process; its incarnation must be drawn anew at every start, since request identities rest on it."""
        self._settings = settings
        self._gateway = gateway
        self._observer = observer or Unobserved()
        self._view = InstanceView(registry, card, Wiring(gateway, settings, self._observer, dial))
        self._counter = itertools.count(1)
        self._paces = PaceBook(Pace())
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.create_task(self._view.run(), name="instance view")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._view.close()
        await self._tasks.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def generate(self, spec: GenerationSpec) -> AsyncIterator[RunningRequest]:
        """Start a request. Raises MeshError NO_INSTANCE where a role has nobody to serve it."""
        tokens = len(spec.prompt) + spec.sampling.max_tokens
        placement = place(self._view.candidates(), self._settings.pipeline, tokens)
        self._observer.placed(placement)
        request = self._request(next(self._counter), spec, placement)
        try:
            request.start()
            yield request
        finally:
            request.leave()
            if placement.relay is not None:
                self._paces.learn(placement.relay.instance.id, placement.main.instance.id, request.measured)

    def missing_roles(self) -> tuple[str, ...]:
        """Roles that the configured pipeline needs and no connected instance fills."""
        present = {candidate.registration.role for candidate in self._view.candidates()}
        needed = (Role.PREFILL, *decoder_roles(self._settings.pipeline))
        return tuple(role.value for role in needed if role not in present)

    def connected(self) -> int:
        """Instances that can be given a request now."""
        return len(self._view.candidates())

    def context_tokens(self) -> int | None:
        """The longest request, prompt and output together, that can be placed now; None while a role is missing."""
        registrations = [candidate.registration for candidate in self._view.candidates()]
        needed = (Role.PREFILL, *decoder_roles(self._settings.pipeline))
        longest = (max((one.context_tokens for one in registrations if one.role is role), default=None) for role in needed)
        present = [tokens for tokens in longest if tokens is not None]
        return min(present) if len(present) == len(needed) else None

    def _request(self, number: int, spec: GenerationSpec, placement: Placement) -> RunningRequest:
        links = self._links(placement)
        leaning, pace, playout = Leaning(HandoffMode.ONE_SHOT), Pace(), None  # never looked at where there is no relay
        if placement.relay is not None:
            relay, main = placement.relay.instance, placement.main.instance
            leaning = self._view.leaning(relay)
            pace = self._paces.pace(relay.id, main.id, links.decoders[Role.MAIN].greeting_s)
            if spec.streaming:
                playout = Playout(pace.round_trip_s, pace.relay_interval_s)
        score = sampled(number, self._settings.agreement_sample)
        machine = HandoffMachine(self._settings.pipeline, leaning, self._settings.policy(pace), score=score)
        request = RequestId(self._gateway.incarnation, number)
        return RunningRequest(request, spec, placement, links, machine, playout, self._settings, self._observer)

    def _links(self, placement: Placement) -> Links:
        decoders = {role: one for role, one in placement.instances().items() if role is not Role.PREFILL}
        return Links(
            self._view.prefill_link(placement.prefill.instance),
            {role: self._view.decode_link(one.instance) for role, one in decoders.items()},
        )
