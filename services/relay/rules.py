"""What a relay is among decoders: it decodes from the commit at once and takes no handoff."""

from __future__ import annotations

from pdd.decode.commands import Rules
from pdd.engine.base import Capabilities


def relay_rules(capabilities: Capabilities) -> Rules:
    return Rules(role="relay", takes_handoff=False, decodes_on_commit=True, context_tokens=capabilities.context_tokens)
