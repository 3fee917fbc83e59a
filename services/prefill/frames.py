"""What one attached gateway is owed by prefill: events collected as they come, taken as one PrefillFrame.

Filled by the session, emptied by the stream's writer. Owns the bound on what may pile up for a peer that does not read. Events
stay in the order they came in, so a handle's Released stays its last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.v1 import prefill_pb2

DEFAULT_BOUND = 16_384


@dataclass(slots=True)
class Outbox:
    bound: int = DEFAULT_BOUND  # events that may wait
    _events: list[prefill_pb2.PrefillEvent] = field(default_factory=list)
    _told: tuple[object, ...] = ()  # the load as the peer last heard it

    def add(self, event: prefill_pb2.PrefillEvent) -> None:
        self._events.append(event)

    @property
    def waiting(self) -> int:
        return len(self._events)

    @property
    def overflowing(self) -> bool:
        return self.waiting > self.bound

    def take(self, load: prefill_pb2.PrefillLoad) -> prefill_pb2.PrefillFrame | None:
        """Everything since the last call, with the load of now; None where neither says anything new."""
        links = tuple((link.target, link.backlog_bytes, round(link.goodput_bytes_s)) for link in load.links)
        told = (load.running, load.waiting, load.transferring, load.queued_tokens, round(load.kv_used * 1000), links)
        if not self._events and told == self._told:
            return None
        frame = prefill_pb2.PrefillFrame(events=self._events, load=load)
        self._told = told
        self.clear()
        return frame

    def clear(self) -> None:
        self._events.clear()
