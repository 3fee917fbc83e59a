"""Who takes part in one request: its prefill, and the decoders that were planned or have joined, with the handle at each.

Used by `request`, which says what to tell whom. Owns the handles; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.generation import GenerationSpec
from gateway.handoff.actions import Extend
from gateway.handoff.events import HandoffEvent
from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.prefill_jobs import PrefillJobs
from gateway.mesh.prefill_link import PrefillLink
from gateway.mode import DecoderLoad, Leaning
from gateway.routing.plan import Plan
from pdd.catalog.base import Registration, Role
from pdd.identity import Instance, RequestId


@dataclass(frozen=True, slots=True)
class Links:
    """Where the streams to instances are found."""

    prefill: Callable[[Instance], PrefillLink]
    decoder: Callable[[Instance], DecodeLink]
    leaning: Callable[[Instance], Leaning]  # a relay's


class Crew:
    def __init__(
        self,
        plan: Plan,
        links: Links,
        request: RequestId,
        spec: GenerationSpec,
        deliver: Callable[[Sequence[HandoffEvent]], None],
    ) -> None:
        """`deliver` takes what the instances say of the request."""
        self.registrations: dict[Role, Registration] = {}  # of those who take part, or did
        self.ids: dict[Role, str] = {}
        self._plan = plan
        self._links = links
        self._request = request
        self._spec = spec
        self._deliver = deliver
        self._decoders: dict[Role, tuple[DecodeLink, int]] = {}  # with the handle
        self._prefill = PrefillJobs(lambda: links.prefill(plan.prefill.instance), request, spec, deliver)

    def start(self) -> None:
        """Send the admissions and the prefill at once: an offer that overtakes its admission is parked."""
        self._take_in(self._plan.prefill)
        targets = [registration for registration in (self._plan.relay, self._plan.main) if registration is not None]
        for target in targets:
            self._admit(target)
        self._prefill.start(targets)

    def join(self, decoder: Registration) -> None:
        """Take in a decoder that was not planned, and have prefill send it the KV."""
        self._admit(decoder)
        self._prefill.start([decoder])

    def leaning(self, relay: Registration) -> Leaning:
        return self._links.leaning(relay.instance)

    def names(self) -> Mapping[str, str]:
        """Instance ids by the names of their roles, for logs."""
        return {role.value: instance_id for role, instance_id in self.ids.items()}

    # To main

    def extend(self, extend: Extend) -> None:
        link, handle = self._decoders[Role.MAIN]
        link.extend(handle, extend)

    def recall(self) -> None:
        link, handle = self._decoders[Role.MAIN]
        link.recall(handle)

    def ask_slot(self) -> DecoderLoad | None:
        """As `DecodeLink.ask_slot`."""
        link, handle = self._decoders[Role.MAIN]
        return link.ask_slot(handle)

    def leave_slot(self) -> None:
        """As `DecodeLink.leave_slot`; nothing where there is no main."""
        if Role.MAIN in self._decoders:
            link, handle = self._decoders[Role.MAIN]
            link.leave_slot(handle)

    # To the relay

    def throttle(self, min_interval_s: float) -> None:
        link, handle = self._decoders[Role.RELAY]
        link.throttle(handle, min_interval_s)

    def stop_relay(self) -> None:
        link, handle = self._decoders[Role.RELAY]
        link.stop(handle)

    # To anyone

    def abort(self, role: Role, reason: str, *, keep: bool = False) -> None:
        """Nothing where the role is not filled."""
        if role is Role.PREFILL:
            self._prefill.abort(reason)
        elif role in self._decoders:
            link, handle = self._decoders[role]
            link.abort(handle, reason, keep=keep)

    def abort_all(self, reason: str) -> None:
        for role in self.registrations:
            self.abort(role, reason)

    def _admit(self, decoder: Registration) -> None:
        self._take_in(decoder)
        link = self._links.decoder(decoder.instance)
        handle = link.open(self._deliver)
        link.admit(handle, self._request, self._spec)
        self._decoders[decoder.role] = link, handle

    def _take_in(self, registration: Registration) -> None:
        self.registrations[registration.role] = registration
        self.ids[registration.role] = registration.instance.id
