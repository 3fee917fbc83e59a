"""One received transfer: what each message of its sender does to it, and what is answered.

Driven by `receiver`, which hands in every message and writes every reply. Owns the transfer's place, its credit and its lease on
the store. Never awaits or reads a clock.

    OFFERED ─ accept ─► RECEIVING ─ frame* ─► commit ─► COMMITTED
       └──────────────────┴─ anything wrong ─► REFUSED
                          └─ cancel ─► CANCELLED

Fails closed: a frame is checked whole before any of it is written, the first thing wrong ends the transfer, and whatever ends it
but a commit frees all it held. Nothing can be read before the commit. After it the payloads stay until `close`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pdd.identity import RequestId
from pdd.kv.hashing import chain_hashes
from pdd.kv.layout import DENSE_F16, KvLayout, differences
from pdd.kv.store import BlockStore, Lease, NoMemory
from pdd.kv.wire import MAX_FRAME_BYTES, KvFrame, MalformedFrame, WireFrame, commit_digest, largest_frame, parse_frame
from pdd.transfer.admission import Admission
from pdd.transfer.base import Received, Refusal, TransferRefused
from pdd.transfer.messages import PushMessage, kind_of
from pdd.v1 import identity_pb2, kv_pb2


class Stage(enum.Enum):
    OFFERED = "offered"
    RECEIVING = "receiving"
    COMMITTED = "committed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Inbound:
    admission: Admission
    layout: KvLayout  # the receiver's
    store: BlockStore
    window_bytes: int  # payload bytes that the sender may have outstanding, if the transfer has as many
    stage: Stage = field(default=Stage.OFFERED, init=False)
    received: Received | None = field(default=None, init=False)  # once committed
    refusal: TransferRefused | None = field(default=None, init=False)  # once refused or cancelled
    _lease: Lease | None = field(default=None, init=False)
    _wire_format: str = field(default="", init=False)
    _checksums: list[int] = field(default_factory=list, init=False)  # of the verified blocks
    _credit_bytes: int = field(default=0, init=False)  # what the sender may still send
    _owed_bytes: int = field(default=0, init=False)  # verified and not yet returned as credit

    @property
    def total_blocks(self) -> int:
        return len(self.admission.prompt) // self.layout.block_tokens

    @property
    def total_bytes(self) -> int:
        return self.total_blocks * self.layout.block_bytes

    # ── messages ──

    def accept(self, offer: kv_pb2.Offer) -> kv_pb2.PushReply:
        """Answer the offer with Want, with the whole range reserved, or with Refused."""
        try:
            self._check_offer(offer)
            self._lease = self.store.reserve(
                self.admission.request, self.total_blocks, self.layout.block_bytes, self.admission.expires_s
            )
        except NoMemory as error:
            return self.refuse(Refusal.NO_MEMORY, str(error))
        except TransferRefused as refusal:
            return self.refuse(refusal.reason, str(refusal))
        self.stage, self._wire_format = Stage.RECEIVING, offer.wire_format
        # A window must hold the largest frame, or a sender that makes such frames would wait for ever.
        self._credit_bytes = min(max(self.window_bytes, largest_frame(self.layout.block_bytes)), self.total_bytes)
        return kv_pb2.PushReply(want=kv_pb2.Want(first_block=0, credit_bytes=self._credit_bytes))

    def take(self, message: PushMessage) -> kv_pb2.PushReply | None:
        """Take any message that follows the offer; returns what to answer, if anything. `stage` says what became of it."""
        if self.refusal is not None:
            return refused_reply(self.refusal)  # it came late, after the transfer was ended from this side
        try:
            return self._take(message)
        except TransferRefused as refusal:
            return self.refuse(refusal.reason, str(refusal))

    def refuse(self, reason: Refusal, message: str) -> kv_pb2.PushReply:
        """End the transfer and free what it holds; a committed one stays committed."""
        if self.stage in (Stage.OFFERED, Stage.RECEIVING):
            self._drop(Stage.REFUSED, TransferRefused(reason, message))
        return refused_reply(TransferRefused(reason, message))

    def renew(self, expires_s: float) -> None:
        """Raises LeaseEnded."""
        if self._lease is not None:
            self.store.renew(self._lease, expires_s)

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
        expected = chain_hashes(prompt, self.layout.block_tokens, self.admission.salt)
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
        expected, what = len(self._checksums), f"blocks {frame.first_block}..{frame.end_block - 1} came"
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

    def _take(self, message: PushMessage) -> kv_pb2.PushReply | None:
        if self.stage is not Stage.RECEIVING:
            raise TransferRefused(Refusal.OUT_OF_TURN, f"{kind_of(message)} came while {self.stage.value}")
        if isinstance(message, WireFrame):
            return self._take_frame(message)
        match message.WhichOneof("kind"):
            case "frame":
                return self._take_frame(WireFrame.from_proto(message.frame))
            case "commit":
                return self._take_commit(message.commit)
            case "cancel":
                return self._take_cancel(message.cancel)
            case other:
                raise TransferRefused(Refusal.OUT_OF_TURN, f"{other or 'an empty message'} came while {self.stage.value}")

    def _take_frame(self, wire_frame: WireFrame) -> kv_pb2.PushReply | None:
        frame = self._check_frame(wire_frame)
        assert self._lease is not None
        for offset, payload in enumerate(frame.payloads):
            self.store.put(self._lease, frame.first_block + offset, payload)
        self._checksums.extend(frame.checksums)
        self._credit_bytes -= frame.declared_bytes
        self._owed_bytes += frame.declared_bytes
        return self._returned_credit()

    def _returned_credit(self) -> kv_pb2.PushReply | None:
        """Credit goes back in quarters of the window, which saves messages and always leaves the sender room for a block."""
        verified = len(self._checksums)
        if verified == self.total_blocks or 4 * self._owed_bytes < self._credit_bytes + self._owed_bytes:
            return None
        credit = kv_pb2.Credit(verified_blocks=verified, credit_bytes=self._owed_bytes)
        self._credit_bytes += self._owed_bytes
        self._owed_bytes = 0
        return kv_pb2.PushReply(credit=credit)

    def _take_commit(self, commit: kv_pb2.Commit) -> kv_pb2.PushReply:
        self._check_request(commit.request, "commit")
        verified = len(self._checksums)
        if commit.block_count != verified or verified != self.total_blocks:
            message = f"a commit of {commit.block_count} blocks, with {verified} verified of {self.total_blocks} offered"
            raise TransferRefused(Refusal.COUNT_MISMATCH, message)
        if commit.digest != commit_digest(self._checksums):
            raise TransferRefused(Refusal.DIGEST_MISMATCH, f"the commit's digest is not that of the {verified} verified blocks")
        assert self._lease is not None
        self.store.seal(self._lease)
        self.stage = Stage.COMMITTED
        payloads = self.store.read(self._lease)
        self.received = Received(self.admission.request, payloads, commit.first_token, commit.final)
        return kv_pb2.PushReply(committed=kv_pb2.Committed())

    def _take_cancel(self, cancel: kv_pb2.Cancel) -> kv_pb2.PushReply:
        self._check_request(cancel.request, "cancel")
        self._drop(Stage.CANCELLED, TransferRefused(Refusal.CANCELLED_ATTEMPT, f"the sender cancelled: {cancel.reason}"))
        return kv_pb2.PushReply(cancelled=kv_pb2.Cancelled())

    def _drop(self, stage: Stage, refusal: TransferRefused) -> None:
        self.stage, self.refusal = stage, refusal
        self._free()

    def _free(self) -> None:
        self.received = None
        if self._lease is not None:
            self.store.release(self._lease)
            self._lease = None


def refused_reply(refusal: TransferRefused) -> kv_pb2.PushReply:
    return kv_pb2.PushReply(refused=kv_pb2.Refused(reason=refusal.reason.value, message=str(refusal)))
