"""How long an answer is expected to be, from its bound, a hint, and the answers before it.

`LengthBook` is asked by `gateway.mesh` before each decision and told of each answer that came to its end. Pure.

What is expected is the third quartile of the last answers, not their mean: a plan that counts on a short answer and gets a long
one must start a transfer late, while one that counts on a long answer merely sends KV that was not needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

_ANSWERS = 128  # that are remembered of one key
_LEAST = 8  # answers that are worth an estimate
_QUANTILE = 0.75
_KEYS = 256  # the one longest without news is forgotten first


class LengthBook:
    """Answers by key, for example the model."""

    def __init__(self) -> None:
        self._lengths: dict[Hashable, deque[int]] = {}

    def expected(self, key: Hashable, max_tokens: int, hint: int | None = None) -> int:
        """Output tokens, in [1, max_tokens]; `hint` is the client's own expectation."""
        known = [max_tokens]
        if hint is not None:
            known.append(hint)
        lengths = self._lengths.get(key, ())
        if len(lengths) >= _LEAST:
            known.append(sorted(lengths)[int(_QUANTILE * len(lengths))])
        return max(1, min(known))

    def learn(self, key: Hashable, output_tokens: int) -> None:
        """An answer has ended by itself or at its max_tokens; one that was cancelled or failed teaches nothing."""
        lengths = self._lengths.pop(key, None) or deque(maxlen=_ANSWERS)
        lengths.append(output_tokens)
        self._lengths[key] = lengths
        if len(self._lengths) > _KEYS:
            del self._lengths[next(iter(self._lengths))]
