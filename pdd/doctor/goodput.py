"""The rate of a line from the arrivals of a short probe. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdd.doctor.facts import Goodput


def goodput(slot_us: int, slot_bytes: Sequence[int]) -> Goodput:
    """The rate of the best half of the slots: a stream that has just begun takes some round trips to open its window.

    The last slot was cut short, so it is left out where there are others. Nothing at all is a rate of 0.
    """
    whole = slot_bytes[:-1] or slot_bytes
    window = max(1, len(whole) // 2)
    best = max((sum(whole[first : first + window]) for first in range(len(whole) - window + 1)), default=0)
    return Goodput(best / (window * slot_us / 1e6), sum(slot_bytes))
