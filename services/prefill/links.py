"""The links to the targets, as prefill sees them: what waits for each, how fast it is, and whether more may wait.

Made by the worker; every transfer tells its target's meter what moves, and each load told to a gateway reads them. Outlives the
transfers, so that a plan can be made for a link that is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.transfer.goodput import LinkMeter
from pdd.v1 import prefill_pb2

MAX_LINKS = 256  # of which idle ones are forgotten first


@dataclass(slots=True)
class Links:
    bound_bytes: int | None = None  # made, that may wait for one target; None: any number
    _meters: dict[str, LinkMeter] = field(default_factory=dict)  # by instance id of the target, longest unused first

    def to(self, target: str) -> LinkMeter:
        """The meter for a transfer that starts now."""
        meter = self._meters.pop(target, None) or LinkMeter()
        self._meters[target] = meter
        if len(self._meters) > MAX_LINKS:
            idle = next((name for name, one in self._meters.items() if not one.transfers and one is not meter), None)
            if idle is not None:
                del self._meters[idle]
        return meter

    def excess(self, target: str) -> str | None:
        """Why a transfer that has more to send now should not go on. One that waits alone may be of any size."""
        meter = self._meters.get(target)
        if self.bound_bytes is None or meter is None:
            return None
        waiting = [size for transfer in meter.transfers if (size := transfer.ready_bytes) > 0]
        if sum(waiting) <= self.bound_bytes or len(waiting) < 2:
            return None
        limit = f"{sum(waiting)} bytes in {len(waiting)} transfers wait for the link to {target}, and {self.bound_bytes} may"
        return f"{limit}: start this one anew when less does, or raise PDD_BACKLOG_MB"

    def loads(self, now_s: float) -> list[prefill_pb2.LinkLoad]:
        return [
            prefill_pb2.LinkLoad(
                target=target,
                backlog_bytes=meter.backlog_bytes,
                goodput_bytes_s=meter.goodput(now_s) or 0.0,
                transfers=len(meter.transfers),
            )
            for target, meter in self._meters.items()
        ]
