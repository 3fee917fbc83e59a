"""One transfer as its sender sees it: which message is next, and what the receiver's answers mean.

Driven by `sender`, which writes what `next_message` returns and hands in every reply. Owns the sender's place, its credit and the
outcome. Never awaits or reads a clock.

    OFFERING ─ Offer ─► OFFERED ◄─ Pending* Want ─► SENDING ─ Frame* ─ Commit ─► COMMITTING ◄─ Committed ─► ENDED
    any of these ─ cancel, feed failed ─► CANCELLING ─ Cancel ─► ◄─ Cancelled ─► ENDED
    any of these ◄─ Refused, peer lost ─► ENDED
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.engine.base import Payload
from pdd.identity import Instance, RequestId
from pdd.kv.layout import KvLayout
from pdd.kv.wire import blocks_per_frame, build_frame, commit_digest
from pdd.transfer.base import Refusal, TransferLost, TransferRefused
from pdd.transfer.feed import BlockFeed, FeedEnd
from pdd.transfer.goodput import LinkMeter
from pdd.transfer.messages import PushMessage
from pdd.v1 import kv_pb2


@dataclass(frozen=True, slots=True)
class OfferedKv:
    """What a transfer offers. Fields as in `Offer` of kv.proto; the wire format is the layout's first."""

    request: RequestId
    sender: Instance
    layout: KvLayout
    prompt_tokens: int
    block_hashes: tuple[int, ...] = field(repr=False)

    def to_proto(self) -> kv_pb2.Offer:
        return kv_pb2.Offer(
            request=self.request.to_proto(),
            sender=self.sender.to_proto(),
            layout=self.layout.to_proto(),
            wire_format=self.layout.wire_formats[0],
            prompt_tokens=self.prompt_tokens,
            block_hashes=self.block_hashes,
        )


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A committed transfer."""

    blocks: int
    bytes: int  # that the blocks sent stand for
    offer_to_commit_s: float
    first_frame_to_commit_s: float  # 0 where no frame was sent


class Stage(enum.Enum):
    OFFERING = "offering"  # the receiver has heard nothing yet
    OFFERED = "offered"
    SENDING = "sending"
    COMMITTING = "committing"
    CANCELLING = "cancelling"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Outbound:
    offer: OfferedKv
    feed: BlockFeed
    link: LinkMeter = field(default_factory=LinkMeter)  # the target's, shared by all transfers to it
    stage: Stage = field(default=Stage.OFFERING, init=False)
    first_block: int = field(default=0, init=False)  # as the receiver wants it
    report: TransferReport | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)  # why there is no report
    _sent: list[int] = field(default_factory=list, init=False)  # checksums
    _credit_bytes: int = field(default=0, init=False)
    _accepted_bytes: int | None = field(default=None, init=False)  # these three as told to the link
    _sent_bytes: int = field(default=0, init=False)
    _acknowledged_bytes: int = field(default=0, init=False)
    _cancel_reason: str | None = field(default=None, init=False)  # to be told to the receiver
    _offered_s: float = field(default=0.0, init=False)
    _first_frame_s: float | None = field(default=None, init=False)

    @property
    def missing_blocks(self) -> int:
        """What the receiver wanted of the offer."""
        return len(self.offer.block_hashes) - self.first_block

    @property
    def missing_bytes(self) -> int:
        return self.missing_blocks * self.offer.layout.block_bytes

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def ready_bytes(self) -> int:
        """Wanted, made and not acknowledged yet."""
        made_blocks = max(0, len(self.feed) - self.first_block)
        return made_blocks * self.offer.layout.block_bytes - self._acknowledged_bytes

    # ── what to write ──

    def next_message(self, now_s: float) -> PushMessage | None:
        """The next message to write; None while there is nothing to say. Call it again after each change."""
        if self.stage is Stage.OFFERING:
            self.stage, self._offered_s = Stage.OFFERED, now_s
            return kv_pb2.PushRequest(offer=self.offer.to_proto())
        if self.stage is Stage.CANCELLING:
            return self._cancel_message()
        if self.stage in (Stage.COMMITTING, Stage.ENDED):
            return None
        if self.feed.error is not None:
            self.cancel(f"prefill failed: {self.feed.error}", self.feed.error)
            return self._cancel_message()
        return self._next_of_range(now_s) if self.stage is Stage.SENDING else None

    def _next_of_range(self, now_s: float) -> PushMessage | None:
        block_bytes = self.offer.layout.block_bytes
        at, total = self.first_block + len(self._sent), len(self.offer.block_hashes)
        end = self.feed.end
        if (end is not None and len(self.feed) < total) or len(self.feed) > total:
            wrong = ValueError(f"{len(self.feed)} blocks were made of a prompt with {total}: the transfer can't be whole")
            self.cancel(str(wrong), wrong)
            return self._cancel_message()
        if at == total:
            return None if end is None else self._commit_message(end)
        payloads = self.feed.blocks(at, min(blocks_per_frame(block_bytes), self._credit_bytes // block_bytes))
        return self._frame_message(at, payloads, now_s) if payloads else None

    def _frame_message(self, first_block: int, payloads: Sequence[Payload], now_s: float) -> PushMessage | None:
        try:
            frame = build_frame(self.offer.request, first_block, payloads, self.offer.layout.block_bytes)
        except ValueError as error:
            self.cancel(str(error), error)
            return self._cancel_message()
        self._sent.extend(frame.head.checksums)
        self._credit_bytes -= frame.head.declared_bytes
        self._sent_bytes += frame.head.declared_bytes
        self.link.sent(frame.head.declared_bytes, now_s)
        if self._first_frame_s is None:
            self._first_frame_s = now_s
        return frame

    def _commit_message(self, end: FeedEnd) -> kv_pb2.PushRequest:
        self.stage = Stage.COMMITTING
        commit = kv_pb2.Commit(
            request=self.offer.request.to_proto(),
            block_count=len(self._sent),
            digest=commit_digest(self._sent),
            first_token=end.first_token,
            final=end.final,
        )
        return kv_pb2.PushRequest(commit=commit)

    def _cancel_message(self) -> kv_pb2.PushRequest | None:
        reason, self._cancel_reason = self._cancel_reason, None
        if reason is None:
            return None
        return kv_pb2.PushRequest(cancel=kv_pb2.Cancel(request=self.offer.request.to_proto(), reason=reason))

    # ── what was heard ──

    def take_reply(self, reply: kv_pb2.PushReply, now_s: float) -> None:
        kind = reply.WhichOneof("kind")
        if self.stage is Stage.ENDED:
            return
        if kind == "refused":
            self._take_refusal(reply.refused)
        elif self.stage is Stage.CANCELLING:
            # Want, credit and even Committed may cross the Cancel.
            if kind in ("cancelled", "committed"):
                self._end()
        elif kind == "pending" and self.stage is Stage.OFFERED:
            pass  # a sign of life
        elif kind == "want" and self.stage is Stage.OFFERED and reply.want.first_block <= len(self.offer.block_hashes):
            self.stage, self.first_block, self._credit_bytes = Stage.SENDING, reply.want.first_block, reply.want.credit_bytes
            self._accepted_bytes = self.missing_bytes
            self.link.accepted(self, self._accepted_bytes)
        elif kind == "credit" and self.stage in (Stage.SENDING, Stage.COMMITTING):
            self._credit_bytes += reply.credit.credit_bytes
            self._acknowledge(reply.credit.credit_bytes, now_s)
        elif kind == "committed" and self.stage is Stage.COMMITTING:
            self._take_committed(now_s)
        else:
            self.lost(f"the receiver answered {kind} while the transfer was {self.stage.value}: it speaks another protocol")

    def cancel(self, reason: str, error: Exception | None = None) -> None:
        """Give the transfer up; `error` is why, where it is not the caller's own wish."""
        if self.stage in (Stage.CANCELLING, Stage.ENDED):
            return
        self._cancel_reason, self.error = reason, error
        if self.stage is Stage.OFFERING:
            self._end()  # nothing to take back from a receiver that has not heard of it
        else:
            self.stage = Stage.CANCELLING

    def lost(self, message: str) -> None:
        """The peer or the link is gone."""
        if self.stage is not Stage.ENDED:
            self.error = self.error or TransferLost(message)
            self._end()

    def _take_refusal(self, refused: kv_pb2.Refused) -> None:
        try:
            refusal: Exception = TransferRefused(Refusal(refused.reason), refused.message)
        except ValueError:
            refusal = TransferLost(f"refused for a reason unknown here ({refused.reason}): {refused.message}")
        self.error = self.error or refusal
        self._end()

    def _take_committed(self, now_s: float) -> None:
        self.report = TransferReport(
            blocks=len(self._sent),
            bytes=self._sent_bytes,
            offer_to_commit_s=now_s - self._offered_s,
            first_frame_to_commit_s=0.0 if self._first_frame_s is None else now_s - self._first_frame_s,
        )
        self._acknowledge(self._sent_bytes, now_s)
        self._end()

    # ── the link ──

    def _acknowledge(self, size: int, now_s: float) -> None:
        size = min(size, self._sent_bytes - self._acknowledged_bytes)
        if size > 0:
            self._acknowledged_bytes += size
            self.link.acknowledged(size, now_s)

    def _end(self) -> None:
        self.stage = Stage.ENDED
        if self._accepted_bytes is not None:
            acknowledged = self._acknowledged_bytes
            self.link.ended(self, self._accepted_bytes - acknowledged, self._sent_bytes - acknowledged)
