"""What a main is among decoders: it waits for the handoff, decodes from what it is given then, and keeps what it made."""

from __future__ import annotations

from pdd.decode.commands import Rules
from pdd.engine.base import Capabilities


def main_rules(capabilities: Capabilities) -> Rules:
    return Rules(
        role="main",
        takes_handoff=True,
        decodes_on_commit=False,
        retains_output=True,
        context_tokens=capabilities.context_tokens,
    )
