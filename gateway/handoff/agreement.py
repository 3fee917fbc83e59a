"""Agreement: on a sample of handoffs main says which of the relay's tokens its own sampler would have chosen.

Used by `gateway.mesh`. Pure. Between equal engines every token agrees; a share below 1 is the earliest sign of wrong KV or of
numerics that drift. Between unequal ones (another engine or device dtype) a lower share is normal, and is measured all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from pdd.catalog.base import Registration

_GOLDEN_RATIO = 0.618033988749895


def sampled(number: int, share: float) -> bool:
    """Whether the request of this number is of the sample: evenly spread, and the same whenever it is asked.

    Multiples of the golden ratio, modulo 1, fill [0, 1) evenly from any start (Knuth, The Art of Computer Programming 3, 6.4).
    """
    return number * _GOLDEN_RATIO % 1.0 < share


def expected(instances: Iterable[Registration]) -> bool:
    """Whether these declare the same engine and device dtype, so that every token must agree."""
    return len({(one.layout.engine, one.layout.device_dtype) for one in instances}) == 1
