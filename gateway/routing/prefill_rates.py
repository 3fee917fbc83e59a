"""How many prompt tokens each prefill computes in a second.

`PrefillRates` is told by `gateway.mesh` of each first token, and read for every snapshot. Pure.
"""

from __future__ import annotations

_WEIGHT = 0.25  # of the newest prompt in the moving averages


class PrefillRates:
    """By instance id. The quotient of two averages, so that a long prompt says more than a short one."""

    def __init__(self) -> None:
        self._averages: dict[str, tuple[float, float]] = {}  # tokens, seconds

    def rate(self, prefill: str) -> float:
        """Tokens a second; 0 where nothing has been measured."""
        tokens, seconds = self._averages.get(prefill, (0.0, 0.0))
        return tokens / seconds if seconds else 0.0

    def learn(self, prefill: str, computed_tokens: int, compute_s: float) -> None:
        """As in FirstToken."""
        if compute_s <= 0:
            return
        tokens, seconds = self._averages.get(prefill, (computed_tokens, compute_s))
        self._averages[prefill] = (
            tokens + _WEIGHT * (computed_tokens - tokens),
            seconds + _WEIGHT * (compute_s - seconds),
        )

    def forget(self, prefill: str) -> None:
        self._averages.pop(prefill, None)
