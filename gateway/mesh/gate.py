"""Lets a decoder's frames pass at once, or several as one where they come faster than any engine makes steps.

Used by `decode_link`, which owns the timer. Pure. When the gateway has been held up, or a decoder has, steps arrive in a burst;
what a frame costs, and what a token costs each client's stream, is then paid for several steps together. A frame that says more
than tokens never waits, and no frame overtakes another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pdd.v1 import decode_pb2

MIN_INTERVAL_S = 0.002  # between two passages of tokens


class FrameGate:
    def __init__(self) -> None:
        self._held: decode_pb2.DecodeFrame | None = None
        self._passed_s = -math.inf  # when tokens last did

    @property
    def due_s(self) -> float | None:
        """When to call `let_go`; None where nothing is held."""
        return None if self._held is None else self._passed_s + MIN_INTERVAL_S

    def arrive(self, frame: decode_pb2.DecodeFrame, now_s: float) -> Sequence[decode_pb2.DecodeFrame]:
        """Take the next frame, which is the gate's from now on, and return those that pass, in order."""
        if frame.opening or frame.closing or frame.logprobs_of:
            return (*self.let_go(now_s), frame)
        if self._held is not None:
            _append(self._held, frame)
            return ()
        if now_s - self._passed_s < MIN_INTERVAL_S:
            self._held = frame
            return ()
        self._passed_s = now_s
        return (frame,)

    def let_go(self, now_s: float) -> Sequence[decode_pb2.DecodeFrame]:
        """What was held."""
        if self._held is None:
            return ()
        held, self._held = self._held, None
        self._passed_s = now_s
        return (held,)


def _append(frame: decode_pb2.DecodeFrame, later: decode_pb2.DecodeFrame) -> None:
    if later.HasField("load"):
        frame.ClearField("load")  # merged, it would keep what the later one has at 0
    frame.MergeFrom(later)
