"""One StartPrefill, from its start to Released: what is still held for it, and what each report makes of that.

Driven by the session, which carries out the actions returned. Owns the one answer to "is everything let go of?". Never awaits,
touches an engine, a sender or the store.

Two things end independently: the computing, and each target's transfer. A target that fails leaves the others alone. Computing
goes on only as long as somebody waits for it.

    computing ── Prefilled | Failed | Aborted ──┐
    transfer to each target ── done | failed ───┴── when all of them are over ─► Unpin, Released
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pdd.engine.base import Aborted, Failed, Prefilled, TokenOut
from pdd.transfer.base import Refusal
from pdd.transfer.outbound import TransferReport
from pdd.v1 import prefill_pb2
from services.prefill import events


@dataclass(frozen=True, slots=True)
class AbortSeq:
    """Stop computing; the engine answers with a closing event."""


@dataclass(frozen=True, slots=True)
class CompleteFeed:
    """All blocks are made: the senders may commit."""

    first_token: int
    final: bool  # index 0 was the last token


@dataclass(frozen=True, slots=True)
class FailFeed:
    """No more blocks will come: the senders cancel, and end."""

    message: str


@dataclass(frozen=True, slots=True)
class CancelTransfers:
    """Each sender that is under way cancels, waits for the receiver's word, and ends."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """Nobody reads the blocks any more."""


Action = AbortSeq | CompleteFeed | FailFeed | CancelTransfers | Unpin | prefill_pb2.PrefillEvent


class Job:
    def __init__(self, handle: int, prompt_tokens: int, targets: Iterable[str]) -> None:
        self.handle = handle
        self._prompt_tokens = prompt_tokens
        self._sending = list(targets)  # transfers under way
        self._computing = True
        self._given_up = False  # aborted or failed: how the transfers end is no news any more

    @property
    def computing(self) -> bool:
        """Blocks may still be made."""
        return self._computing

    @property
    def transferring(self) -> bool:
        """The blocks are made, and pinned for a transfer only."""
        return not self._computing and bool(self._sending)

    # ── the gateway ──

    def abort(self) -> list[Action]:
        return self._give_up() if not self._given_up else []

    def fail(self, code: events.ErrorCode, text: str) -> list[Action]:
        """End it for a reason of ours: the lease, a command that can't be meant."""
        return [events.failed(self.handle, code, text), *self._give_up()] if not self._given_up else []

    # ── the engine ──

    def prefilled(self, event: Prefilled, first: TokenOut) -> list[Action]:
        self._computing = False
        if self._given_up:
            return self._settle()
        told = events.first_token(self.handle, first, event, self._prompt_tokens)
        return [told, CompleteFeed(first.token, event.finish is not None), *self._settle()]

    def engine_closed(self, event: Failed | Aborted) -> list[Action]:
        self._computing = False
        if self._given_up or isinstance(event, Aborted):
            return self._settle()
        self._given_up = True
        text = str(event.fault)
        return [events.failed(self.handle, events.ENGINE_FAILED, text), FailFeed(text), *self._settle()]

    # ── the transfers ──

    def wanted(self, target: str, missing_blocks: int, missing_bytes: int) -> list[Action]:
        return [] if self._given_up else [events.wanted(self.handle, target, missing_blocks, missing_bytes)]

    def transfer_done(self, target: str, report: TransferReport) -> list[Action]:
        self._sending.remove(target)
        return [events.transfer_done(self.handle, target, report), *self._settle()]

    def transfer_failed(self, target: str, reason: Refusal | None, text: str) -> list[Action]:
        self._sending.remove(target)
        if self._given_up:
            return self._settle()
        told = events.transfer_failed(self.handle, target, reason, text)
        # With the last target gone nobody waits for the blocks, nor for index 0: the gateway can't go on without a decoder.
        unwanted: list[Action] = [AbortSeq()] if self._computing and not self._sending else []
        return [told, *unwanted, *self._settle()]

    def transfer_cancelled(self, target: str) -> list[Action]:
        self._sending.remove(target)
        return self._settle()

    # ── shared ──

    def _give_up(self) -> list[Action]:
        self._given_up = True
        computing: list[Action] = [AbortSeq()] if self._computing else []
        sending: list[Action] = [CancelTransfers()] if self._sending else []
        return [*computing, *sending, *self._settle()]

    def _settle(self) -> list[Action]:
        return [] if self._computing or self._sending else [Unpin(), events.released(self.handle)]
