"""Which handles of an attached stream have ended. Pure; used by the sessions of decoders and of prefill.

A handle's closing event and a late command for it cross on the wire: a command for an ended handle is no error, while one for a
handle that never was is. The memory is bounded: one that ended so long ago that nothing can be under way for it is forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class EndedHandles:
    remembered: int = 4096
    _numbers: set[int] = field(default_factory=set)
    _order: deque[int] = field(default_factory=deque)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        if number in self._numbers:
            return
        self._numbers.add(number)
        self._order.append(number)
        if len(self._order) > self.remembered:
            self._numbers.discard(self._order.popleft())
