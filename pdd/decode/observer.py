"""What a decoder tells whoever measures it. Called on the event loop; must return at once and never raise."""

from __future__ import annotations

from typing import Protocol

from pdd.engine.base import Extended
from pdd.transfer.observer import ReceiverObserver, UnobservedReceiver


class DecoderObserver(ReceiverObserver, Protocol):
    """With what it tells of its receiver."""

    def slot_taken(self, waited_s: float) -> None:
        """A sequence was given its first ids, and they are computed: what of that time was not computing."""

    def extended(self, event: Extended) -> None:
        """Known ids were computed: the eager tokens of a handoff or a part of them; at a relay a prompt's tail and index 0."""


class UnobservedDecoder(UnobservedReceiver):
    """Measures nothing."""

    def slot_taken(self, waited_s: float) -> None:
        pass

    def extended(self, event: Extended) -> None:
        pass
