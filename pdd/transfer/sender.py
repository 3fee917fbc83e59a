"""Sends one request's blocks to one target, while they are being made.

Called by prefill, one task per target, on a channel of the transfer's own. A thin shell around `outbound`, which decides: this
one writes, reads and keeps the deadlines. Reading and writing run side by side, so that a refusal in mid-transfer stops it at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from pdd.kv.wire import WireFrame
from pdd.transfer.base import TransferLost
from pdd.transfer.feed import BlockFeed
from pdd.transfer.goodput import LinkMeter
from pdd.transfer.messages import PushCall, open_push
from pdd.transfer.outbound import OfferedKv, Outbound, Stage, TransferReport
from pdd.v1 import kv_pb2

OnWanted = Callable[[int, int], None]  # missing blocks, missing bytes
OnProgress = Callable[[], None]
OnEnd = Callable[[int], None]  # bytes of KV that were put on the link


@dataclass(frozen=True, slots=True)
class SenderSettings:
    offer_s: float = 20.0  # to each answer to the offer: connecting, parking, and a slow line's backlog ahead of it
    cancel_s: float = 2.0  # from Cancel to Cancelled; after that the call is torn down


async def send(
    channel: grpc.aio.Channel,
    offer: OfferedKv,
    feed: BlockFeed,
    *,
    on_wanted: OnWanted,
    lease_s: float,
    on_progress: OnProgress | None = None,
    on_end: OnEnd | None = None,
    link: LinkMeter | None = None,
    settings: SenderSettings | None = None,
) -> TransferReport:
    """Offer at once, send what the receiver wants as the feed grows, commit when it is complete.

    `on_wanted` is called when the offer is accepted, `on_progress` whenever the receiver answers and whenever the connection has
    taken a frame, `on_end` once, however the transfer ends; `link` is told what moves. Raises TransferRefused with the receiver's
    reason; TransferLost when the peer can't be reached, goes away, or nothing has moved for `lease_s`; the feed's error when it
    fails. Cancelling the calling task cancels the transfer: the receiver's acknowledgement, or the end of the call, comes before
    CancelledError does.
    """
    settings = settings or SenderSettings()
    call = open_push(channel)
    outbound = Outbound(offer, feed, link or LinkMeter())
    session = _Session(call, outbound, on_wanted, on_progress or _ignore, min(settings.offer_s, lease_s), lease_s)
    running = asyncio.create_task(session.run(), name=f"send {offer.request}")
    try:
        # Shielded: gRPC tears the call down when a task that reads or writes is cancelled, and Cancel could not be sent any more.
        await asyncio.shield(running)
    except asyncio.CancelledError:
        session.cancel("prefill gave the transfer up")
        if outbound.stage is not Stage.ENDED:  # where nothing was offered yet, nobody has to be told
            await asyncio.wait((running,), timeout=settings.cancel_s)
        raise
    finally:
        running.cancel()
        call.cancel()
        outbound.lost("the transfer was torn down without the receiver's word")
        if on_end is not None:
            on_end(outbound.sent_bytes)
    if outbound.report is None:
        raise outbound.error or TransferLost("the transfer ended without an outcome")
    return outbound.report


@dataclass(slots=True)
class _Session:
    _call: PushCall
    _outbound: Outbound
    _on_wanted: OnWanted
    _on_progress: OnProgress
    _offer_s: float
    _silence_s: float
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _patience: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None), init=False)  # the current read's

    async def run(self) -> None:
        """Returns once the transfer has ended, well or badly."""
        with self._outbound.feed.watch(self._changed):
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                await self._read()
                writer.cancel()

    def cancel(self, reason: str) -> None:
        self._outbound.cancel(reason)
        self._changed.set()

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (message := self._outbound.next_message(clock())) is not None:
                try:
                    await self._call.write(message)
                except (grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is dead, and the reader gets to know why
                except asyncio.CancelledError:
                    if _is_cancelled():
                        raise
                    return
                if isinstance(message, WireFrame):
                    self._frame_taken()

    def _frame_taken(self) -> None:
        if self._outbound.stage is not Stage.ENDED and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + self._silence_s)
            self._on_progress()

    async def _read(self) -> None:
        while self._outbound.stage is not Stage.ENDED:
            unanswered = self._outbound.stage in (Stage.OFFERING, Stage.OFFERED)
            self._patience = asyncio.timeout(self._offer_s if unanswered else self._silence_s)
            try:
                async with self._patience:
                    reply = await self._call.read()
            except TimeoutError:
                self._outbound.lost(self._silence(unanswered))
            except grpc.aio.AioRpcError as error:
                self._outbound.lost(f"{error.code().name}: {error.details()}")
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                self._outbound.lost("the channel was closed under the transfer")
            else:
                self._take(reply)

    def _take(self, reply: object) -> None:
        if not isinstance(reply, kv_pb2.PushReply):
            self._outbound.lost("the receiver ended the stream with neither Committed nor Refused: it was probably restarted")
            return
        offered = self._outbound.stage is Stage.OFFERED
        self._outbound.take_reply(reply, asyncio.get_running_loop().time())
        if offered and self._outbound.stage is Stage.SENDING:
            self._on_wanted(self._outbound.missing_blocks, self._outbound.missing_bytes)
        self._on_progress()
        self._changed.set()

    def _silence(self, unanswered: bool) -> str:
        if unanswered:
            return f"no answer to the offer within {self._offer_s:g} s: is the target up, and its address right?"
        return f"nothing moved for the lease of {self._silence_s:g} s: is the link up, and prefill not overloaded?"


def _ignore() -> None:
    """Nobody wants to hear of progress."""


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled. gRPC also raises CancelledError when its call was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
