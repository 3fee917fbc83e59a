"""The token log of one request: every output id that may be shown, in index order, appended to and never changed.

Written by the handoff machine alone, just before it emits. A decoder that takes over is given ids from here, so what was shown
stands whoever goes on. Usage is counted from it. Never holds text: detokenising and stop strings are the API's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.generation import Usage


class OutOfOrder(ValueError):
    """Tokens that are not the next ones of the log; nothing was appended."""


@dataclass(slots=True)
class TokenLog:
    _ids: list[int] = field(default_factory=list)

    @property
    def next_index(self) -> int:
        """Output index of the first token that is not there yet; also the number of tokens."""
        return len(self._ids)

    def append(self, first_index: int, ids: Sequence[int]) -> None:
        """Append ids whose first has output index `first_index`. Raises OutOfOrder for a hole or a repetition."""
        if first_index != len(self._ids):
            raise OutOfOrder(f"token index {first_index} came where {len(self._ids)} is next")
        self._ids.extend(ids)

    def ids(self, first_index: int, end_index: int) -> tuple[int, ...]:
        """Ids of output indices [first_index, end_index), all of which are there."""
        if not 0 <= first_index <= end_index <= len(self._ids):
            raise IndexError(f"indices [{first_index}, {end_index}) asked of a log of {len(self._ids)} tokens")
        return tuple(self._ids[first_index:end_index])

    def usage(self, prompt_tokens: int, cached_tokens: int, shown: int | None = None) -> Usage:
        """What the request is charged; `shown` leaves out tokens that came after a stop string was complete."""
        completion = len(self._ids) if shown is None else min(shown, len(self._ids))
        return Usage(prompt_tokens, completion, cached_tokens)
