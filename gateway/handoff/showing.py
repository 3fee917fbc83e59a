"""What decoders say of output indices, checked against the token log: nothing is shown twice, left out or made up.

Called by the handoff machine, once for each event that brings or ends tokens. Owns nothing; appends to the log that it is given.
"""

from __future__ import annotations

from gateway.handoff.actions import Emit
from gateway.handoff.events import Finished, NewTokens, Stopped
from gateway.handoff.phase import BrokenProtocol
from gateway.tokenlog import OutOfOrder, TokenLog


def show(log: TokenLog, event: NewTokens) -> Emit:
    """Append the tokens, and say how to show them. Raises BrokenProtocol."""
    if event.logprobs and len(event.logprobs) != len(event.tokens):
        raise BrokenProtocol(event.role, f"{len(event.logprobs)} logprobs for {len(event.tokens)} tokens")
    try:
        log.append(event.first_index, event.tokens)
    except OutOfOrder as error:
        raise BrokenProtocol(event.role, str(error)) from error
    return Emit(event.first_index, event.tokens, event.role, event.logprobs)


def check_end(log: TokenLog, event: Stopped | Finished, next_index: int) -> None:
    """Raises BrokenProtocol unless every token up to the end has come."""
    if next_index != log.next_index:
        text = f"{type(event).__name__} at index {next_index} after tokens up to {log.next_index}"
        raise BrokenProtocol(event.role, text)
