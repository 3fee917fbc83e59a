"""One percentile, as reports and statistics give it."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that is not exceeded by `percent` of them (nearest rank); 0 of none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]
