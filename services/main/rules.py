"""What a main is among decoders: it waits for the handoff, and decodes from what it is given then."""

from __future__ import annotations

from pdd.decode.commands import Rules
from pdd.engine.base import Capabilities


def main_rules(capabilities: Capabilities) -> Rules:
    return Rules(role="main", takes_handoff=True, decodes_on_commit=False, context_tokens=capabilities.context_tokens)
