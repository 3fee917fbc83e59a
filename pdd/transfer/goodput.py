"""How fast the link to one target is, and how much waits for it.

Fed by the transfers to that target, read by prefill for its load and to bound what waits. Owns one link's numbers. Never awaits
or reads a clock.

Goodput is what the target has acknowledged, over the time in which something sent was not acknowledged yet. Idle time says
nothing of a link, nor does the first acknowledgement after it, which took a round trip whatever the rate. Older evidence fades
with that time and not with the clock's, so a link that has been idle keeps its last figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

FADE_S = 0.3  # after which evidence counts a third: a link that falls to a tenth has fallen here to a fifth within a second
EVIDENCE_S = 0.02  # of counted time, without which there is no figure: acknowledgements that come together would make a wild one
OVERDUE_S = 1.0  # without a first acknowledgement, after which waiting counts as evidence; more than a round trip


class Transfer(Protocol):
    @property
    def ready_bytes(self) -> int:
        """Wanted, made and not acknowledged yet."""


@dataclass(slots=True)
class LinkMeter:
    backlog_bytes: int = field(default=0, init=False)  # accepted by the target and not acknowledged yet, made or not
    transfers: list[Transfer] = field(default_factory=list, init=False)  # accepted and not ended, oldest first
    _in_flight_bytes: int = field(default=0, init=False)  # sent and not acknowledged yet
    _counted_s: float = field(default=0.0, init=False)  # up to when time is counted, while something is in flight
    _acknowledged_once: bool = field(default=False, init=False)  # since something is in flight
    _last_bytes: int = field(default=0, init=False)  # acknowledged at once
    _bytes: float = field(default=0.0, init=False)  # faded, as is the time
    _seconds: float = field(default=0.0, init=False)

    def accepted(self, transfer: Transfer, size: int) -> None:
        """The target wants that many bytes."""
        self.transfers.append(transfer)
        self.backlog_bytes += size

    def sent(self, size: int, now_s: float) -> None:
        if self._in_flight_bytes == 0:
            self._counted_s, self._acknowledged_once = now_s, False
        self._in_flight_bytes += size

    def acknowledged(self, size: int, now_s: float) -> None:
        if self._is_evidence(now_s):
            self._bytes, self._seconds = self._with(size, now_s - self._counted_s)
        self._last_bytes = size
        self._counted_s, self._acknowledged_once = now_s, True
        self.backlog_bytes -= size
        self._in_flight_bytes -= size

    def ended(self, transfer: Transfer, accepted: int, in_flight: int) -> None:
        """That much of what was accepted, and of what was sent, will not be acknowledged."""
        self.transfers.remove(transfer)
        self.backlog_bytes -= accepted
        self._in_flight_bytes -= in_flight

    def goodput(self, now_s: float) -> float | None:
        """Bytes a second; None where nothing was measured yet.

        While something is in flight it is no more than it would be if as much as last time were acknowledged now.
        """
        if self._seconds < EVIDENCE_S:
            return None
        known = self._bytes / self._seconds
        if not self._in_flight_bytes or not self._is_evidence(now_s):
            return known
        size, seconds = self._with(self._last_bytes, now_s - self._counted_s)
        return min(known, size / seconds)

    def _is_evidence(self, now_s: float) -> bool:
        """Whether the time that has gone by says something of the link."""
        return self._acknowledged_once or now_s - self._counted_s > OVERDUE_S

    def _with(self, size: int, elapsed_s: float) -> tuple[float, float]:
        """Bytes and seconds, with `size` acknowledged over `elapsed_s` since."""
        kept = math.exp(-elapsed_s / FADE_S)
        weighed_s = FADE_S * (1.0 - kept)
        share = weighed_s / elapsed_s if elapsed_s else 1.0
        return self._bytes * kept + size * share, self._seconds * kept + weighed_s
