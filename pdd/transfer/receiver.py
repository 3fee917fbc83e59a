"""Serves KvTransfer.Push: takes KV that the gateway has announced, and reports to whoever admitted it.

Owned by a decoder, which admits, cancels and releases; called by gRPC once per transfer. A thin shell: `admission` decides who
may come, `inbound` what a message does; this one reads, writes and keeps the deadlines. Whatever frees a transfer's memory does
so in one synchronous call, so that no frame can be written after it.

A handler waits for messages. A transfer that ends from outside meanwhile, by a cancel or with its lease, is refused past it: its
memory is freed at once, and its sender told within a round trip.

An offer of blocks that another transfer brings is answered Pending until that one has ended. It is this side that makes it
wait, so its lease starts anew with each Pending; the wait is bounded by the other's lease.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pdd.identity import RequestId
from pdd.kv.cache import PrefixCache
from pdd.kv.layout import KvLayout
from pdd.kv.store import BlockStore
from pdd.transfer.admission import Admission, AdmissionDesk, expiry_message
from pdd.transfer.base import Refusal, TransferListener, TransferRefused
from pdd.transfer.inbound import Inbound, Stage, refused_reply
from pdd.transfer.joining import joined_by
from pdd.transfer.messages import PushContext
from pdd.transfer.observer import ReceiverObserver, UnobservedReceiver
from pdd.transfer.stream import PushStream
from pdd.v1 import kv_pb2

_LOST = "the sender's stream ended with neither Commit nor Cancel: its prompt is not whole"


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    credit_bytes: int = 32 << 20  # that one transfer may have outstanding
    park_s: float = 1.0  # how long an offer may wait for its admission
    offer_s: float = 10.0  # from the stream's start to its offer
    pending_s: float = 5.0  # between two Pending; less than a sender's patience with an offer
    answer_s: float = 5.0  # for a reply to leave; after that the call counts as dead
    linger_s: float = 2.0  # to hear a refused sender out; more than a round trip
    sweep_s: float = 0.25  # between two looks at the leases


@dataclass(slots=True)
class _Entry:
    """An admission that its listener has not seen the end of."""

    listener: TransferListener
    inbound: Inbound | None = None
    stream: PushStream | None = None


class Receiver:
    """Enter it, or nothing ends with its lease. Without a `cache`, which must be over the same store, it keeps nothing."""

    def __init__(
        self,
        layout: KvLayout,
        store: BlockStore,
        settings: ReceiverSettings | None = None,
        cache: PrefixCache | None = None,
        observer: ReceiverObserver | None = None,
    ) -> None:
        self._layout = layout
        self._store = store
        self._cache = cache or PrefixCache(store, layout.block_tokens, 0)
        self._settings = settings or ReceiverSettings()
        self._observer = observer or UnobservedReceiver()
        self._desk = AdmissionDesk(park_s=self._settings.park_s)
        self._entries: dict[RequestId, _Entry] = {}
        self._accepted: dict[RequestId, Inbound] = {}  # transfers, in the order in which their offers were good
        self._admitted_one = asyncio.Event()  # these two are replaced by a fresh one each time they are set
        self._ended_one = asyncio.Event()
        self._parked = 0
        self._sweeper: asyncio.Task[None] | None = None

    def usage(self) -> float:
        """Share of the byte budget that transfers hold, 0..1."""
        return self._store.usage

    @property
    def parked(self) -> int:
        """Offers that wait for their admission."""
        return self._parked

    # ── for the owner ──

    def admit(self, request: RequestId, prompt: tuple[int, ...], salt: str, lease_s: float, listener: TransferListener) -> None:
        """Expect `request`, and tell `listener` what becomes of it. It outdates the request's older attempts, which fail.

        Raises TransferRefused where the attempt is outdated itself or has ended, ValueError where it is admitted already; the
        listener then hears nothing.
        """
        _, older = self._desk.admit(request, prompt, salt, lease_s, _now_s())
        self._entries[request] = _Entry(listener)
        if older is not None:
            self._fail_soon(older, self._entries[older], Refusal.STALE_ATTEMPT, f"attempt {request.attempt} has replaced {older}")
        self._wake_parked()

    def cancel(self, request: RequestId) -> None:
        """Refuse the attempt from now on; free what it holds. Its listener hears nothing any more."""
        self._desk.cancel(request, _now_s())
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._stop(entry, Refusal.CANCELLED_ATTEMPT, f"{request} was cancelled by its gateway")
        self._wake_parked()

    def release(self, request: RequestId) -> None:
        """The payloads that `ready` gave may be reused. Nothing happens where they went already."""
        entry = self._entries.get(request)
        if entry is None:
            return
        if entry.inbound is None or entry.inbound.stage is not Stage.COMMITTED:
            raise ValueError(f"{request} is not received yet: cancel it")
        del self._entries[request]
        entry.inbound.close()
        self._desk.end(request, Refusal.OUT_OF_TURN, "its KV came and was used before", _now_s())

    # ── for gRPC ──

    async def push(self, _requests: object, context: PushContext) -> None:
        """One transfer, from its offer to an explicit end."""
        began_s = _now_s()
        async with PushStream(context, self._settings.answer_s, self._settings.linger_s) as stream:
            try:
                offer = await self._read_offer(stream)
                admission = await self._claim(RequestId.from_proto(offer.request))
            except TransferRefused as refusal:
                stream.refuse(refused_reply(refusal))
                await stream.read()
                return
            entry = self._entries[admission.request]
            entry.stream = stream
            inbound = entry.inbound = Inbound(admission, self._layout, self._cache, self._settings.credit_bytes)
            try:
                await self._receive(entry, inbound, offer, stream, began_s)
            finally:
                self._accepted.pop(admission.request, None)
                if inbound.under_way:
                    self._fail(admission.request, entry, None, _LOST)
                if inbound.granted:
                    committed = inbound.stage is Stage.COMMITTED
                    self._observer.received(committed, inbound.verified_bytes, inbound.kept_bytes)

    async def _read_offer(self, stream: PushStream) -> kv_pb2.Offer:
        offer_s = self._settings.offer_s
        late = TransferRefused(Refusal.OUT_OF_TURN, f"no offer came within {offer_s} s")
        with stream.refusing_after(offer_s, refused_reply(late)):
            message = await stream.read()
        if not isinstance(message, kv_pb2.PushRequest) or not message.HasField("offer"):
            raise TransferRefused(Refusal.OUT_OF_TURN, "a transfer starts with an offer")
        return message.offer

    async def _claim(self, request: RequestId) -> Admission:
        """The offer's admission; waits for it a little while, since another connection brings it. Raises TransferRefused."""
        offered_s = _now_s()
        while True:
            verdict = self._desk.offered(request, offered_s, _now_s(), self._parked)
            if isinstance(verdict, Admission):
                return verdict
            self._parked += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(verdict.until_s):
                        await self._admitted_one.wait()
            finally:
                self._parked -= 1

    async def _receive(self, entry: _Entry, inbound: Inbound, offer: kv_pb2.Offer, stream: PushStream, began_s: float) -> None:
        reply = inbound.accept(offer)
        self._tell(entry, inbound)
        if inbound.stage is Stage.PENDING:
            self._accepted[inbound.admission.request] = inbound
            if await self._until_due(inbound, stream):
                reply = inbound.grant()
                self._tell(entry, inbound)
        if inbound.stage is Stage.RECEIVING:
            self._renew(inbound)
            block_tokens = self._layout.block_tokens
            missing_tokens = inbound.missing_blocks * block_tokens
            self._observer.granted(_now_s() - began_s, inbound.first_block * block_tokens, missing_tokens)
            entry.listener.wanted(inbound.missing_blocks, inbound.missing_bytes)
        while inbound.under_way:
            if reply is not None and not await stream.answer(reply):
                return
            message = await stream.read()
            if message is None:
                return
            reply = inbound.take(message, _now_s())
            if inbound.stage is Stage.RECEIVING:  # a frame was verified: the lease bounds silence, not the whole transfer
                self._renew(inbound)
            self._tell(entry, inbound)
        if inbound.stage is Stage.REFUSED:
            await stream.read()  # to the sender's end: the refusal is being said
        elif reply is not None:
            await stream.answer(reply)

    async def _until_due(self, inbound: Inbound, stream: PushStream) -> bool:
        """Wait until no transfer accepted before brings what this one lacks. False where it was ended, or its sender spoke."""
        repeat_s = min(self._settings.pending_s, inbound.admission.lease_s / 3)
        while inbound.stage is Stage.PENDING:
            ended_one, joined = self._ended_one, joined_by(inbound, self._accepted.values())
            if joined is None:
                return True
            self._renew(inbound)
            pending = kv_pb2.Pending(transfer=joined.admission.request.to_proto())
            if not await stream.answer(kv_pb2.PushReply(pending=pending)) or await stream.wait(ended_one, repeat_s):
                return False
        return False

    # ── what became of it ──

    def _tell(self, entry: _Entry, inbound: Inbound) -> None:
        """Report where a message of the sender has led to, if to an end."""
        if inbound.received is not None:
            self._renew(inbound)
            self._wake_joined()
            entry.listener.ready(inbound.received)
        elif inbound.refusal is not None:
            self._fail(inbound.admission.request, entry, inbound.refusal.reason, str(inbound.refusal))

    def _renew(self, inbound: Inbound) -> None:
        inbound.renew(self._desk.renew(inbound.admission.request, _now_s()).expires_s)

    def _fail(self, request: RequestId, entry: _Entry, reason: Refusal | None, message: str) -> None:
        """The end of an admission that its owner did not ask for. Does nothing where it has ended already."""
        if self._entries.get(request) is not entry:
            return
        del self._entries[request]
        closing = reason or Refusal.CANCELLED_ATTEMPT
        self._stop(entry, closing, message)
        self._desk.end(request, closing, message, _now_s())
        entry.listener.failed(reason, message)

    def _fail_soon(self, request: RequestId, entry: _Entry, reason: Refusal, message: str) -> None:
        """As `_fail`, but a listener is not to be called from within a call of its owner."""
        self._stop(entry, reason, message)
        asyncio.get_running_loop().call_soon(self._fail, request, entry, reason, message)

    def _stop(self, entry: _Entry, reason: Refusal, message: str) -> None:
        """Free what a transfer holds, and tell its sender, unless that has committed or cancelled."""
        if entry.inbound is None or entry.stream is None:
            return
        refusal = entry.inbound.refuse(reason, message)
        entry.inbound.close()
        self._wake_joined()
        if entry.inbound.stage is Stage.REFUSED:
            entry.stream.refuse(refusal)

    def _wake_parked(self) -> None:
        self._admitted_one.set()
        self._admitted_one = asyncio.Event()

    def _wake_joined(self) -> None:
        self._ended_one.set()
        self._ended_one = asyncio.Event()

    # ── leases ──

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep(), name="lease sweep")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_s)
            for admission in self._desk.expire(_now_s()):
                self._fail(admission.request, self._entries[admission.request], Refusal.LEASE_EXPIRED, expiry_message(admission))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
