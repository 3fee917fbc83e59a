"""What the mesh tells whoever measures it. Called on the event loop; must return at once and never raise."""

from __future__ import annotations

from typing import Protocol

from gateway.generation import Timeline
from gateway.routing.plan import Plan
from pdd.catalog.base import Role


class MeshObserver(Protocol):
    def queued(self, waited_s: float) -> None:
        """A request is about to get its plan, and has waited for a relay so long."""

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        """A request got its pipeline and its instances."""

    def joined(self, role: Role) -> None:
        """A plan has proved wrong: a relay or a main was taken in while the request ran."""

    def handoff_done(self, timeline: Timeline) -> None:
        """A request in which main took over from a relay has its answer."""

    def tokens_scored(self, scored: int, agreed: int) -> None:
        """Main's own sampler was asked for so many of a relay's tokens, and chose so many of them too."""

    def events_dropped(self, instance_id: str, count: int) -> None:
        """An instance spoke of handles that are closed or never were."""

    def abort_unanswered(self, instance_id: str) -> None:
        """An instance did not say in time that it has dropped a request."""

    def link_changed(self, instance_id: str, connected: bool) -> None:
        """The stream to an instance was opened or lost."""


class Unobserved:
    """Measures nothing."""

    def queued(self, waited_s: float) -> None:
        pass

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        pass

    def joined(self, role: Role) -> None:
        pass

    def handoff_done(self, timeline: Timeline) -> None:
        pass

    def tokens_scored(self, scored: int, agreed: int) -> None:
        pass

    def events_dropped(self, instance_id: str, count: int) -> None:
        pass

    def abort_unanswered(self, instance_id: str) -> None:
        pass

    def link_changed(self, instance_id: str, connected: bool) -> None:
        pass
