"""What a relay is among decoders: it decodes from the commit at once, takes no handoff and keeps nothing."""

from __future__ import annotations

from pdd.decode.commands import Rules
from pdd.engine.base import Capabilities


def relay_rules(capabilities: Capabilities) -> Rules:
    return Rules(
        role="relay",
        takes_handoff=False,
        decodes_on_commit=True,
        retains_output=False,
        context_tokens=capabilities.context_tokens,
    )
