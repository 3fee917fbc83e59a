"""Which instances hold something for a request, which have its KV whole, and whether the request can go on without one.

Called by the handoff machine alone, with every event of an instance. Pure; never says what to do, only what is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.generation import MeshErrorCode
from gateway.handoff.events import Closed, Extended, Failed, Finished, KvReady, Lost, NewTokens, Stopped, TransferFailed
from pdd.catalog.base import Role

DecoderEvent = KvReady | Extended | NewTokens | Stopped | Finished
Trouble = TransferFailed | Failed | Closed | Lost


class Holders:
    def __init__(self, roles: Iterable[Role]) -> None:
        self._open = list(roles)
        self._whole: set[Role] = set()  # decoders that have the prompt's KV

    @property
    def open(self) -> tuple[Role, ...]:
        """Those whose handle is not closed, in the order given."""
        return tuple(self._open)

    def hears(self, event: DecoderEvent) -> bool:
        """Take what a decoder says; False where its handle is closed, and it may say nothing any more."""
        if event.role not in self._open:
            return False
        if isinstance(event, KvReady | NewTokens):
            self._whole.add(event.role)
        if isinstance(event, Stopped | Finished):
            self._open.remove(event.role)
        return True

    def has_kv(self, role: Role) -> bool:
        return role in self._whole

    def give_up(self, role: Role) -> bool:
        """The request goes on without this decoder. True where its handle was open."""
        if role not in self._open:
            return False
        self._open.remove(role)
        return True

    def fatal(self, event: Trouble, *, first_token: bool) -> tuple[MeshErrorCode, str] | None:
        """Take bad news, and say why the request can't go on; None where it can. `first_token`: prefill has given its token."""
        role = event.role
        if role not in self._open:
            return None
        if isinstance(event, TransferFailed):
            # Prefill may miss the answer to a commit that the decoder has proven whole: the decoder's word counts.
            return None if role in self._whole else (event.code, event.message)
        if not (isinstance(event, Failed) and role is Role.PREFILL):
            self._open.remove(role)
        if role is Role.PREFILL and first_token and not self._needs_prefill(event):
            return None
        match event:
            case Failed(code=code, message=message):
                return code, message
            case Lost(message=message):
                return MeshErrorCode.PEER_LOST, message
            case Closed():
                return MeshErrorCode.ENGINE_FAILED, "dropped the request unasked"

    def _needs_prefill(self, event: Failed | Closed | Lost) -> bool:
        # Prefill closes when the last commit is answered, and the decoder's own word of it may still be on its way.
        return not isinstance(event, Closed) and any(role not in self._whole for role in self._open if role is not Role.PREFILL)
