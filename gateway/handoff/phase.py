"""Where the handoff of a request stands, and how a decoder may break its rules. The table is in `machine`."""

from __future__ import annotations

import enum

from pdd.catalog.base import Role


class Phase(enum.Enum):
    PREFILLING = "index 0 from prefill"
    RECALLING = "main to give back its ids or to extend"
    RELAYING = "tokens from the relay"
    CATCHING_UP = "main to extend"
    STOPPING = "the relay to stop"
    MAIN_DECODES = "tokens from main"
    OVER = "nothing"


class BrokenProtocol(Exception):
    """A decoder said what it may not say now."""

    def __init__(self, role: Role, message: str) -> None:
        super().__init__(message)
        self.role = role
