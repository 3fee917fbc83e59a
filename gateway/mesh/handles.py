"""The handles of one stream: which request hears what an instance says.

Used by `link` alone. Owns the numbers, the sinks and the time limit on a closing answer; knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.handoff.events import Closed, Failed, Finished, HandoffEvent, Lost, NewTokens, Stopped
from pdd.catalog.base import Role

EventSink = Callable[[Sequence[HandoffEvent]], None]


@dataclass(slots=True)
class _Handle:
    sink: EventSink | None  # None once it is aborted: nobody listens any more
    targets: Mapping[str, Role]
    limit: asyncio.TimerHandle | None = None


class HandleTable:
    def __init__(
        self, role: Role, closing_timeout_s: float, on_dropped: Callable[[int], None], on_unanswered: Callable[[], None]
    ) -> None:
        self._role = role
        self._closing_timeout_s = closing_timeout_s
        self._on_dropped = on_dropped
        self._on_unanswered = on_unanswered
        self._handles: dict[int, _Handle] = {}
        self._last = 0

    def __len__(self) -> int:
        """Handles that are not closed."""
        return len(self._handles)

    def open(self, sink: EventSink, targets: Mapping[str, Role]) -> int:
        """A number that this stream has not used; what is said of it goes to `sink`, until it closes or is aborted.

        `targets` are the other instances, by id, that may be named in what is said of it.
        """
        self._last += 1
        self._handles[self._last] = _Handle(sink, targets)
        return self._last

    def targets(self, number: int) -> Mapping[str, Role]:
        """Empty where the handle is closed."""
        handle = self._handles.get(number)
        return {} if handle is None else handle.targets

    def start_closing(self, number: int) -> bool:
        """Stop listening and wait, for a bounded time, for the answer to an abort. False where the handle is closed already."""
        handle = self._handles.get(number)
        if handle is None:
            return False
        if handle.limit is None:
            handle.sink = None
            handle.limit = asyncio.get_running_loop().call_later(self._closing_timeout_s, self._give_up, number)
        return True

    def deliver(self, number: int, events: Sequence[HandoffEvent]) -> None:
        """Pass on what one frame says of a handle, and forget the handle if that closes it."""
        handle = self._handles.get(number)
        if handle is None:
            self._on_dropped(len(events))
            return
        for event in events:
            if not isinstance(event, NewTokens) and self._closes(event, handle):
                self._forget(number)
                break
        if handle.sink is not None:
            handle.sink(events)

    def broadcast(self, event: HandoffEvent) -> None:
        for handle in tuple(self._handles.values()):
            if handle.sink is not None:
                handle.sink((event,))

    def lose_all(self, why: str) -> None:
        """The stream is gone: every handle is void."""
        lost = tuple(self._handles.items())
        for number, handle in lost:
            self._forget(number)
            if handle.sink is not None:
                handle.sink((Lost(self._role, why),))

    def _closes(self, event: HandoffEvent, handle: _Handle) -> bool:
        if isinstance(event, Closed):
            return True
        if self._role is Role.PREFILL:
            return False  # its Failed is followed by Released
        # Stopped or Finished may cross an abort, which is answered all the same.
        return isinstance(event, Failed) or (isinstance(event, Stopped | Finished) and handle.limit is None)

    def _forget(self, number: int) -> None:
        handle = self._handles.pop(number)
        if handle.limit is not None:
            handle.limit.cancel()

    def _give_up(self, number: int) -> None:
        del self._handles[number]
        self._on_unanswered()
