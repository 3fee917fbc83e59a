"""Which instances hold something for a request, which have its KV whole, and whom the request can do without.

Called by the handoff machine alone, with every event of an instance. Pure; never says what to do, only what is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.generation import MeshErrorCode
from gateway.handoff.events import (
    Closed,
    Extended,
    Failed,
    Finished,
    KvReady,
    Lost,
    NewTokens,
    Recalled,
    Stopped,
    TransferFailed,
    Unavailable,
)
from pdd.catalog.base import Role

DecoderEvent = KvReady | Extended | Recalled | NewTokens | Stopped | Finished
Trouble = TransferFailed | Failed | Closed | Lost | Unavailable


@dataclass(frozen=True, slots=True)
class Loss:
    """Bad news that matters."""

    roles: frozenset[Role]  # who can't do their part any more; prefill's is index 0
    code: MeshErrorCode
    message: str


class Holders:
    def __init__(self, roles: Iterable[Role], spare: Role | None = None) -> None:
        """`roles` are planned; `spare` is the decoder that may join them later, once."""
        self._open = list(roles)
        self._decoders: set[Role] = {role for role in self._open if role is not Role.PREFILL}  # that the request counts on
        self._spare = spare
        self._spare_joined = False
        self._prefill_reopened = False
        self._given_up: set[Role] = set()
        self._whole: set[Role] = set()  # decoders that have the prompt's KV

    @property
    def open(self) -> tuple[Role, ...]:
        """Those whose handle is not closed."""
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
        """Whether the request counts on this decoder, and its KV is whole."""
        return role in self._whole and role in self._decoders

    def counts_on(self, role: Role) -> bool:
        """Whether this decoder is, or was, to make tokens of the request, and was not given up."""
        return role in self._decoders

    def gave_up(self, role: Role) -> bool:
        return role in self._given_up

    def join(self, role: Role) -> bool:
        """Let the spare decoder in, with a job of prefill's for it. False where `role` is not to be had that way."""
        if role is not self._spare or self._spare_joined:
            return False
        self._spare_joined = True
        self._open.append(role)
        self._decoders.add(role)
        if Role.PREFILL not in self._open:
            self._prefill_reopened = True
            self._open.append(Role.PREFILL)
        return True

    def give_up(self, role: Role) -> bool:
        """The request goes on without this decoder. True where its handle was open."""
        self._decoders.discard(role)
        self._given_up.add(role)
        if role not in self._open:
            return False
        self._open.remove(role)
        return True

    def can_spare(self, role: Role) -> bool:
        """Whether this decoder joined later, and the one that was planned is still there to make the answer."""
        return role is self._spare and bool(self._decoders - {role})

    def loss(self, event: Trouble, *, first_token: bool) -> Loss | None:
        """Take bad news, and say what is lost by it; None for nothing. `first_token`: prefill has given its token."""
        role = event.role
        if isinstance(event, Unavailable) and self._prefill_reopened and Role.PREFILL in self._open:
            self._open.remove(Role.PREFILL)  # there is no job for it either
        if role not in self._open:
            return None
        if isinstance(event, TransferFailed):
            # Prefill may miss the answer to a commit that the decoder has proven whole: the decoder's word counts.
            return None if role in self._whole else Loss(frozenset([role]), event.code, event.message)
        if not (isinstance(event, Failed) and role is Role.PREFILL):
            self._open.remove(role)
        lost = frozenset([role])
        if role is Role.PREFILL and first_token:
            # It closes when the last commit is answered, and the decoder's own word of that may still be on its way.
            lost = frozenset() if isinstance(event, Closed) else self._lacking()
        if not lost:
            return None
        match event:
            case Unavailable(message=message):
                return Loss(lost, MeshErrorCode.NO_INSTANCE, message)
            case Failed(code=code, message=message):
                return Loss(lost, code, message)
            case Lost(message=message):
                return Loss(lost, MeshErrorCode.PEER_LOST, message)
            case Closed():
                return Loss(lost, MeshErrorCode.ENGINE_FAILED, "dropped the request unasked")

    def _lacking(self) -> frozenset[Role]:
        return frozenset(role for role in self._open if role is not Role.PREFILL and role not in self._whole)
