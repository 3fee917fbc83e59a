"""What a user asks through: the same for both of the gateway's public APIs."""

from __future__ import annotations

from typing import Protocol

from loadtest.answer import Ask, Reading


class Api(Protocol):
    @property
    def name(self) -> str:
        """As statistics have it: "http" or "grpc"."""
        ...

    def route(self, ask: Ask) -> str:
        """As the gateway's metrics have it."""
        ...

    def read(self, ask: Ask, reading: Reading) -> None:
        """Ask, and fill `reading` as the answer comes, to its end. Leaving by an exception ends the request at the gateway.

        Raises AnswerFailed and ClientLeft.
        """
        ...
