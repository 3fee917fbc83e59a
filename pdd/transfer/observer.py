"""What a receiver tells whoever measures it. Called on the event loop; must return at once and never raise."""

from __future__ import annotations

from typing import Protocol


class ReceiverObserver(Protocol):
    def granted(self, waited_s: float, cached_tokens: int, missing_tokens: int) -> None:
        """An offer was answered with Want: the prompt's full blocks that are cached, and those that are to come.

        `waited_s` is from the stream's start: for the admission, and for other transfers that brought some of the blocks.
        """

    def received(self, committed: bool, blocks_bytes: int, kept_bytes: int) -> None:
        """A transfer that was granted has ended, and had brought so much by then.

        Where it was not committed, the prefix cache took `kept_bytes` of it as new, and the rest is gone.
        """


class UnobservedReceiver:
    """Measures nothing."""

    def granted(self, waited_s: float, cached_tokens: int, missing_tokens: int) -> None:
        pass

    def received(self, committed: bool, blocks_bytes: int, kept_bytes: int) -> None:
        pass
