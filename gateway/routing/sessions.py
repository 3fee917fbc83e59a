"""Which main a conversation is on.

`SessionBook` is asked by `gateway.mesh` before each decision and told when an answer has ended. Pure.

A turn is recognised by the turn before: its prompt begins with that one's prompt, so the chained hash of that one's last full
block is among its own. Main's prefix hit alone would not do. It can't tell a conversation, which should stay where it is, from a
popular system prompt, which should spread; and the catalog is behind by some hundred milliseconds, in which an agent has already
sent its next turn. What is kept here is only where to go: what main really has is the catalog's and main's own word.

A turn takes the entry with it and leaves a new one at its end. So a conversation has one place at a time, and of many requests
with the same prompt at once one alone is taken for its next turn; the others go by hit and load.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdd.identity import Instance

_SESSIONS = 65_536  # the one longest without a turn is forgotten first


class SessionBook:
    def __init__(self, bound: int = _SESSIONS) -> None:
        self._bound = bound
        self._mains: dict[int, Instance] = {}  # by the hash of the last turn's last full block

    def claim(self, hashes: Sequence[int]) -> Instance | None:
        """The main of the conversation that a prompt with these block hashes goes on with; None for a new one."""
        key = next((hash_ for hash_ in reversed(hashes) if hash_ in self._mains), None)
        return None if key is None else self._mains.pop(key)

    def ended(self, hashes: Sequence[int], main: Instance | None) -> None:
        """A turn has ended, well or badly, on `main`, or had none (singular) and `main` is what it claimed."""
        if main is None or not hashes:
            return
        self._mains.pop(hashes[-1], None)
        self._mains[hashes[-1]] = main
        if len(self._mains) > self._bound:
            del self._mains[next(iter(self._mains))]
