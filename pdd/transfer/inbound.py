"""One received transfer: what each message of its sender does to it, and what is answered.

Driven by `receiver`, which hands in every message and writes every reply. Owns the transfer's place, its credit and its leases:
on the leading blocks that are cached, and on the rest, which is to come. Never awaits or reads a clock.

    OFFERED ─ accept ─► PENDING ─ grant ─► RECEIVING ─ frame* ─► commit ─► COMMITTED
       └───────────────────┴─────────────────┴─ anything wrong ─► REFUSED
                           └─────────────────┴─ cancel ─► CANCELLED

Fails closed: a frame is checked whole before any of it is written, the first thing wrong ends the transfer, and whatever ends it
but a commit frees all it held. Nothing can be read before the commit. After it the payloads stay until `close`.

What was committed enters the prefix cache. So do the blocks verified so far when a transfer ends for another reason than what
its sender did: cancelled by either side, lost, expired, outdated. They came in order, under hashes that were checked at the
offer, each with its checksum. Of a sender that was refused nothing is kept: what is wrong with one message casts doubt on all.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from pdd.identity import RequestId
from pdd.kv.cache import Prefix, PrefixCache, prefix_of
from pdd.kv.layout import DENSE_F16, KvLayout, differences
from pdd.kv.store import Lease, NoMemory
from pdd.kv.wire import MAX_FRAME_BYTES, KvFrame, MalformedFrame, WireFrame, commit_digest, largest_frame, parse_frame
from pdd.transfer.admission import Admission
from pdd.transfer.base import Received, Refusal, TransferRefused
from pdd.transfer.messages import PushMessage, kind_of
from pdd.v1 import identity_pb2, kv_pb2


class Stage(enum.Enum):
    OFFERED = "offered"
    PENDING = "pending"  # the offer is good; Want may wait for another transfer
    RECEIVING = "receiving"
    COMMITTED = "committed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


CREDIT_PAUSE_S = 0.05  # at least, between two credits that are returned for the sake of the sender's goodput


@dataclass(slots=True)
class Inbound:
    admission: Admission
    layout: KvLayout  # the receiver's
    cache: PrefixCache
    window_bytes: int  # payload bytes that the sender may have outstanding, if the transfer has as many
    stage: Stage = field(default=Stage.OFFERED, init=False)
    received: Received | None = field(default=None, init=False)  # once committed
    refusal: TransferRefused | None = field(default=None, init=False)  # once refused or cancelled
    prefix: Prefix = field(default=Prefix((), ()), init=False)  # once accepted
    granted: bool = field(default=False, init=False)
    first_block: int = field(default=0, init=False)  # once granted: those before it are cached
    kept_bytes: int = field(default=0, init=False)  # of what it brought, what the prefix cache took as new
    _pinned: Lease | None = field(default=None, init=False)  # the cached blocks
    _reserved: Lease | None = field(default=None, init=False)  # the missing ones
    _wire_format: str = field(default="", init=False)
    _checksums: list[int] = field(default_factory=list, init=False)  # of the verified blocks
    _credit_bytes: int = field(default=0, init=False)  # what the sender may still send
    _owed_bytes: int = field(default=0, init=False)  # verified and not yet returned as credit
    _credited_s: float = field(default=-math.inf, init=False)  # when credit was last returned

    @property
    def total_blocks(self) -> int:
        return len(self.admission.prompt) // self.layout.block_tokens

    @property
    def missing_blocks(self) -> int:
        return self.total_blocks - self.first_block

    @property
    def missing_bytes(self) -> int:
        return self.missing_blocks * self.layout.block_bytes

    @property
    def verified_bytes(self) -> int:
        """Of the blocks that came."""
        return len(self._checksums) * self.layout.block_bytes

    @property
    def under_way(self) -> bool:
        """It may still bring blocks."""
        return self.stage in (Stage.PENDING, Stage.RECEIVING)

    # ── messages ──

    def accept(self, offer: kv_pb2.Offer) -> kv_pb2.PushReply | None:
        """Check the offer. Returns Refused where it is wrong; otherwise `grant` answers it, now or later."""
        try:
            self._check_offer(offer)
        except TransferRefused as refusal:
            return self._refuse_sender(refusal)
        self.stage, self._wire_format = Stage.PENDING, offer.wire_format
        return None

    def grant(self) -> kv_pb2.PushReply:
        """Answer the offer with Want, the cached blocks pinned and the whole missing range reserved, or with Refused."""
        request, expires_s, block_bytes = self.admission.request, self.admission.expires_s, self.layout.block_bytes
        self.first_block = self.cache.match(self.prefix)
        self._pinned = self.cache.pin(request, self.prefix, self.first_block, expires_s)
        try:
            self._reserved = self.cache.reserve(request, self.missing_blocks, block_bytes, expires_s)
        except NoMemory as error:
            return self.refuse(Refusal.NO_MEMORY, str(error))
        self.stage, self.granted = Stage.RECEIVING, True
        # A window must hold the largest frame, or a sender that makes such frames would wait for ever.
        self._credit_bytes = min(max(self.window_bytes, largest_frame(block_bytes)), self.missing_bytes)
        return kv_pb2.PushReply(want=kv_pb2.Want(first_block=self.first_block, credit_bytes=self._credit_bytes))

    def take(self, message: PushMessage, now_s: float) -> kv_pb2.PushReply | None:
        """Take any message that follows the offer; returns what to answer, if anything. `stage` says what became of it."""
        if self.refusal is not None:
            return refused_reply(self.refusal)  # it came late, after the transfer was ended from this side
        try:
            return self._take(message, now_s)
        except TransferRefused as refusal:
            return self._refuse_sender(refusal)

    def refuse(self, reason: Refusal, message: str) -> kv_pb2.PushReply:
        """End the transfer from this side and free what it holds; a committed one stays committed."""
        if self.stage is Stage.OFFERED or self.under_way:
            self._keep_verified()
            self._drop(Stage.REFUSED, TransferRefused(reason, message))
        return refused_reply(TransferRefused(reason, message))

    def renew(self, expires_s: float) -> None:
        """Raises LeaseEnded."""
        for lease in (self._pinned, self._reserved):
            if lease is not None:
                self.cache.store.renew(lease, expires_s)

    def close(self) -> None:
        """Give up what a committed transfer holds."""
        self._free()

    # ── checks ──

    def _check_offer(self, offer: kv_pb2.Offer) -> None:
        sender = KvLayout.from_proto(offer.layout)
        wrong = list(differences(sender, self.layout))
        if offer.wire_format not in self.layout.wire_formats or offer.wire_format not in sender.wire_formats:
            wrong.append(f"wire_format: {offer.wire_format!r} is not one of both sides' formats {self.layout.wire_formats!r}")
        if offer.wire_format == DENSE_F16 and self.layout.block_bytes > MAX_FRAME_BYTES:
            wrong.append(f"block_bytes: {self.layout.block_bytes} do not fit a frame of {MAX_FRAME_BYTES}, use smaller blocks")
        if wrong:
            sides = f"the layouts of sender {offer.sender.id} ({sender.engine}) and receiver ({self.layout.engine}) differ"
            raise TransferRefused(Refusal.INCOMPATIBLE_LAYOUT, f"{sides}: {'; '.join(wrong)}")
        prompt, hashes = self.admission.prompt, tuple(offer.block_hashes)
        if offer.prompt_tokens != len(prompt):
            message = f"a prompt of {offer.prompt_tokens} tokens is offered, one of {len(prompt)} was admitted"
            raise TransferRefused(Refusal.HASH_MISMATCH, message)
        self.prefix = prefix_of(prompt, self.layout.block_tokens, self.admission.salt)
        expected = self.prefix.hashes
        if hashes != expected:
            first = next((i for i, pair in enumerate(zip(hashes, expected, strict=False)) if pair[0] != pair[1]), None)
            where = f"the first that differs is {first}" if first is not None else f"{len(expected)} were expected"
            message = f"the {len(hashes)} hashes offered are not those of the admitted prompt and salt: {where}"
            raise TransferRefused(Refusal.HASH_MISMATCH, message)

    def _check_request(self, message: identity_pb2.RequestId, kind: str) -> None:
        named, own = RequestId.from_proto(message), self.admission.request
        if named == own:
            return
        stale = named.lineage == own.lineage and named.attempt < own.attempt
        reason = Refusal.STALE_ATTEMPT if stale else Refusal.FOREIGN_FRAME
        raise TransferRefused(reason, f"a {kind} of {named} came on the transfer of {own}")

    def _check_frame(self, wire_frame: WireFrame) -> KvFrame:
        self._check_request(wire_frame.head.request, "frame")
        try:
            frame = parse_frame(wire_frame, self._wire_format, self.layout.block_bytes)
        except MalformedFrame as error:
            raise TransferRefused(Refusal.MALFORMED_FRAME, str(error)) from error
        expected, what = self.first_block + len(self._checksums), f"blocks {frame.first_block}..{frame.end_block - 1} came"
        if frame.end_block > self.total_blocks:
            raise TransferRefused(Refusal.MALFORMED_FRAME, f"{what}, but {self.total_blocks} blocks were offered")
        if frame.first_block < expected:
            raise TransferRefused(Refusal.DUPLICATE_BLOCK, f"{what}, but block {expected} is next")
        if frame.first_block > expected:
            raise TransferRefused(Refusal.MISSING_BLOCK, f"{what}, but block {expected} is next")
        if frame.declared_bytes > self._credit_bytes:
            message = f"{frame.declared_bytes} bytes came, with a credit of {self._credit_bytes}: wait for Credit"
            raise TransferRefused(Refusal.CREDIT_EXCEEDED, message)
        bad = frame.bad_block()
        if bad is not None:
            raise TransferRefused(Refusal.CHECKSUM_MISMATCH, f"block {bad} does not have its checksum: it was damaged on the way")
        return frame

    # ── what a message does ──

    def _take(self, message: PushMessage, now_s: float) -> kv_pb2.PushReply | None:
        kind = kind_of(message)
        if self.stage is not Stage.RECEIVING and not (self.stage is Stage.PENDING and kind == "cancel"):
            raise TransferRefused(Refusal.OUT_OF_TURN, f"{kind} came while {self.stage.value}")
        if isinstance(message, WireFrame):
            return self._take_frame(message, now_s)
        match kind:
            case "frame":
                return self._take_frame(WireFrame.from_proto(message.frame), now_s)
            case "commit":
                return self._take_commit(message.commit)
            case "cancel":
                return self._take_cancel(message.cancel)
            case other:
                raise TransferRefused(Refusal.OUT_OF_TURN, f"{other or 'an empty message'} came while {self.stage.value}")

    def _take_frame(self, wire_frame: WireFrame, now_s: float) -> kv_pb2.PushReply | None:
        frame = self._check_frame(wire_frame)
        assert self._reserved is not None
        for index, payload in enumerate(frame.payloads, frame.first_block - self.first_block):
            self.cache.store.put(self._reserved, index, payload)
        self._checksums.extend(frame.checksums)
        self._credit_bytes -= frame.declared_bytes
        self._owed_bytes += frame.declared_bytes
        return self._returned_credit(now_s)

    def _returned_credit(self, now_s: float) -> kv_pb2.PushReply | None:
        """Credit goes back in quarters of the window, which saves messages and always leaves the sender room for a block.

        On a slow link it goes back sooner, and after the last block at once: the sender measures its goodput by it.
        """
        verified = self.first_block + len(self._checksums)
        enough = 4 * self._owed_bytes >= self._credit_bytes + self._owed_bytes
        if not enough and verified < self.total_blocks and now_s - self._credited_s < CREDIT_PAUSE_S:
            return None
        credit = kv_pb2.Credit(verified_blocks=verified, credit_bytes=self._owed_bytes)
        self._credit_bytes += self._owed_bytes
        self._owed_bytes, self._credited_s = 0, now_s
        return kv_pb2.PushReply(credit=credit)

    def _take_commit(self, commit: kv_pb2.Commit) -> kv_pb2.PushReply:
        self._check_request(commit.request, "commit")
        verified = len(self._checksums)
        if commit.block_count != verified or verified != self.missing_blocks:
            message = f"a commit of {commit.block_count} blocks, with {verified} verified of {self.missing_blocks} wanted"
            raise TransferRefused(Refusal.COUNT_MISMATCH, message)
        if commit.digest != commit_digest(self._checksums):
            raise TransferRefused(Refusal.DIGEST_MISMATCH, f"the commit's digest is not that of the {verified} verified blocks")
        assert self._pinned is not None
        assert self._reserved is not None
        self._keep_verified()
        self.stage, store = Stage.COMMITTED, self.cache.store
        payloads = store.read(self._pinned) + store.read(self._reserved)
        self.received = Received(self.admission.request, payloads, commit.first_token, commit.final)
        return kv_pb2.PushReply(committed=kv_pb2.Committed())

    def _take_cancel(self, cancel: kv_pb2.Cancel) -> kv_pb2.PushReply:
        self._check_request(cancel.request, "cancel")
        self._keep_verified()
        self._drop(Stage.CANCELLED, TransferRefused(Refusal.CANCELLED_ATTEMPT, f"the sender cancelled: {cancel.reason}"))
        return kv_pb2.PushReply(cancelled=kv_pb2.Cancelled())

    # ── ends ──

    def _keep_verified(self) -> None:
        if self._reserved is not None:
            self.cache.store.seal(self._reserved, len(self._checksums))
            self.kept_bytes = self.cache.keep(self._reserved, self.prefix, self.first_block) * self.layout.block_bytes

    def _refuse_sender(self, refusal: TransferRefused) -> kv_pb2.PushReply:
        """For what the sender did. Nothing of it is kept."""
        if self.stage is Stage.OFFERED or self.under_way:
            self._drop(Stage.REFUSED, refusal)
        return refused_reply(refusal)

    def _drop(self, stage: Stage, refusal: TransferRefused) -> None:
        self.stage, self.refusal = stage, refusal
        self._free()

    def _free(self) -> None:
        self.received = None
        for lease in (self._pinned, self._reserved):
            if lease is not None:
                self.cache.store.release(lease)
        self._pinned = self._reserved = None


def refused_reply(refusal: TransferRefused) -> kv_pb2.PushReply:
    return kv_pb2.PushReply(refused=kv_pb2.Refused(reason=refusal.reason.value, message=str(refusal)))
