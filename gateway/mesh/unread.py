"""The tokens of one request that its client has not read yet: bounded, and read in as few pieces as possible.

Filled by `request` as tokens are shown, emptied by the API's iteration. One reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.generation import Tokens


class Unread:
    def __init__(self, bound: int) -> None:
        self.taken_tokens = 0
        self._bound = bound
        self._waiting: deque[Tokens] = deque()
        self._waiting_tokens = 0
        self._changed = asyncio.Event()
        self._listener: Callable[[], None] | None = None
        self._held = False
        self._untold = False  # a change that the reader was kept from

    def add(self, tokens: Tokens) -> bool:
        """False, and nothing kept, where more tokens would wait than the bound allows."""
        if self._waiting_tokens + len(tokens.tokens) > self._bound:
            return False
        self._waiting.append(tokens)
        self._waiting_tokens += len(tokens.tokens)
        self.wake()
        return True

    def take(self) -> Tokens | None:
        """The tokens that wait, as far as one instance made them; None where there are none."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        more: list[Tokens] = []
        while self._waiting and self._waiting[0].source == first.source:
            more.append(self._waiting.popleft())
        taken = _joined(first, more) if more else first
        self._waiting_tokens -= len(taken.tokens)
        self.taken_tokens += len(taken.tokens)
        return taken

    def wake(self) -> None:
        """Let the reader look again though nothing was added."""
        if self._held:
            self._untold = True
        elif self._listener is not None:
            self._listener()
        else:
            self._changed.set()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` at every change instead, unless it is held back."""
        self._listener = listener

    def hold(self) -> None:
        """Keep changes from the reader until `let_go`: whoever makes them is in the middle of something."""
        self._held = True

    def let_go(self) -> None:
        self._held = False
        if self._untold:
            self._untold = False
            self.wake()

    async def changed(self) -> None:
        """Until something was added, or `wake` called, since the last time."""
        await self._changed.wait()
        self._changed.clear()


def _joined(first: Tokens, more: list[Tokens]) -> Tokens:
    pieces = (first, *more)
    return Tokens(
        first.first_index,
        tuple(token for piece in pieces for token in piece.tokens),
        first.source,
        tuple(logprobs for piece in pieces for logprobs in piece.logprobs),
    )
