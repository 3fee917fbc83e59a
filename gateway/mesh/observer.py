"""What the mesh tells whoever measures it. Called on the event loop; must return at once and never raise."""

from __future__ import annotations

from typing import Protocol

from gateway.generation import Timeline
from gateway.placement import Placement


class MeshObserver(Protocol):
    def placed(self, placement: Placement) -> None:
        """A request got its instances."""

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

    def placed(self, placement: Placement) -> None:
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
