"""One stream to one instance, shared by every request that this gateway has there.

Run by `peer`, used by `request` through `decode_link` and `prefill_link`. Owns the call, the commands that wait to be written and
the handle table. Commands are plain calls that return at once; events go to the sink that opened the handle. Whatever ends the
stream, every open handle hears Lost. Never retries: a new stream is a new Link.

A read has no deadline, since an instance may have nothing to say for hours: the channel's keepalive finds a dead peer, and each
request has a deadline of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar, cast

import grpc.aio

from gateway.handoff.events import HandoffEvent
from gateway.mesh.handles import EventSink, HandleTable
from gateway.mesh.wiring import Wiring
from pdd.catalog.base import Registration, Role
from pdd.identity import Instance
from pdd.rpc.attach import PROTOCOL
from pdd.v1 import decode_pb2, identity_pb2, prefill_pb2

CommandT = TypeVar("CommandT", decode_pb2.DecodeCommand, prefill_pb2.PrefillCommand)
FrameT = TypeVar("FrameT", decode_pb2.DecodeFrame, prefill_pb2.PrefillFrame)

_FRESH_S = 1.0  # a load said longer ago is no better than the registry's


class LinkLost(Exception):
    """The stream could not be opened, or has ended; the text says why."""


class Link(ABC, Generic[CommandT, FrameT]):
    def __init__(self, registration: Registration, wiring: Wiring) -> None:
        self.registration = registration
        self._gateway = wiring.gateway
        self._settings = wiring.settings
        self._dial = wiring.dial
        instance_id = registration.instance.id
        self._handles = HandleTable(
            registration.role,
            wiring.settings.closing_timeout_s,
            on_dropped=lambda count: wiring.observer.events_dropped(instance_id, count),
            on_unanswered=lambda: wiring.observer.abort_unanswered(instance_id),
        )
        self._outbox: deque[CommandT] = deque()
        self._outbox_filled = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # on the exchange; there while commands are taken
        self._why_given_up = ""
        self._detaching = False
        self.greeting_s: float | None = None  # the round trip of both sides' Hello
        self.sites_told: set[str] = set()  # for whose lines the round trip was noted
        self._load = 0.0
        self._load_at_s = float("-inf")

    # What differs between decoders and prefill

    @abstractmethod
    def _attach(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[CommandT, FrameT]: ...

    @abstractmethod
    def _hello(self, hello: identity_pb2.Hello) -> CommandT: ...

    @abstractmethod
    def _detach(self) -> CommandT: ...

    @abstractmethod
    def _abort(self, handle: int, reason: str, keep: bool) -> CommandT: ...

    @abstractmethod
    def _events(self, frame: FrameT) -> Mapping[int, Sequence[HandoffEvent]]:
        """What a frame says, by handle, in the order in which it is to be applied. Raises ValueError where it makes no sense."""

    @abstractmethod
    def _load_of(self, frame: FrameT) -> float | None:
        """(running + waiting) / slots, where the frame tells."""

    # For requests

    @property
    def up(self) -> bool:
        """Commands are taken."""
        return self._limit is not None

    @property
    def in_flight(self) -> int:
        """Requests of this gateway that the instance has not closed."""
        return len(self._handles)

    def load(self, now_s: float) -> float:
        """(running + waiting) / slots: the instance's own word if it is fresh, else the registry's."""
        return self._load if now_s - self._load_at_s < _FRESH_S else self.registration.load

    def open(self, sink: EventSink, targets: Mapping[str, Role] = MappingProxyType({})) -> int:
        """A handle for one request. `targets` are the instances, by id, that its events may name."""
        return self._handles.open(sink, targets)

    def abort(self, handle: int, reason: str, *, keep: bool = False) -> None:
        """Have the instance drop a request; nothing of it reaches the sink any more. Does nothing where the handle is closed.

        `keep`: a main may keep what it has of it in its prefix cache.
        """
        if self._handles.start_closing(handle):
            self._send(self._abort(handle, reason, keep))

    def broadcast(self, event: HandoffEvent) -> None:
        """Tell every open request of this instance."""
        self._handles.broadcast(event)

    def _send(self, command: CommandT) -> None:
        if self._limit is None:
            return  # the stream is gone, and its handles hear of it
        if len(self._outbox) < self._settings.outbox_commands:
            self._outbox.append(command)
            self._outbox_filled.set()
        else:
            # The sender may be in the middle of something: the stream ends, and handles hear of it, from `run`.
            self._give_up(f"{len(self._outbox)} commands wait for the instance to read them")

    # For the peer that runs it

    async def run(self, on_up: Callable[[], None]) -> None:
        """Connect, call `on_up` once both sides have said hello, and carry messages until the stream ends.

        Returns after `detach`. Raises LinkLost otherwise.
        """
        async with self._dial(self.registration.address) as channel:
            call = self._attach(channel)
            why = "the gateway closed the stream"
            try:
                await self._carry(call, on_up)
            except LinkLost as error:
                why = str(error)
                raise
            finally:
                call.cancel()
                self._handles.lose_all(why)

    def detach(self) -> None:
        """End the stream in good order, after the commands that wait; for the time that an abort may take, then by force."""
        if self._limit is not None and not self._detaching:
            self._send(self._detach())
            self._detaching = True
            self._limit.reschedule(asyncio.get_running_loop().time() + self._settings.closing_timeout_s)

    async def _carry(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT], on_up: Callable[[], None]) -> None:
        try:
            await self._greet(call)
            async with asyncio.timeout(None) as self._limit:
                on_up()
                await self._exchange(call)
        except TimeoutError:
            if not self._detaching:
                raise LinkLost(self._why_given_up) from None
        finally:
            self._limit = None

    def _give_up(self, why: str) -> None:
        """End the exchange from outside of it."""
        if self._limit is not None:
            self._why_given_up = why
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _exchange(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> None:
        # No task group: one that is cancelled in the moment in which a task of it fails reports the failure alone (Python 3.11),
        # and whoever runs this link would open the next one instead of ending.
        writing = asyncio.create_task(self._write_all(call))
        writing.add_done_callback(self._writer_ended)
        try:
            await self._read_all(call)
        finally:
            writing.cancel()
            await asyncio.wait([writing])
        if not writing.cancelled():
            writing.result()

    def _writer_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and writing.exception() is not None:
            self._give_up(f"the gateway failed to write: {writing.exception()!r}")

    async def _greet(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> None:
        hello = identity_pb2.Hello(**{"from": self._gateway.to_proto()}, protocol=PROTOCOL)
        try:
            async with asyncio.timeout(self._settings.greeting_timeout_s):
                await _write(call, self._hello(hello))
                written_s = asyncio.get_running_loop().time()
                frame = await self._read(call)
                self.greeting_s = asyncio.get_running_loop().time() - written_s
        except TimeoutError:
            raise LinkLost(f"no Hello from {self.registration.address} in {self._settings.greeting_timeout_s:g} s") from None
        if frame is None or frame.hello.protocol != PROTOCOL:
            spoken = "nothing" if frame is None else repr(frame.hello.protocol)
            raise LinkLost(f"{self.registration.address} speaks {spoken} instead of {PROTOCOL!r}")
        peer = Instance.from_proto(getattr(frame.hello, "from"))
        if peer != self.registration.instance:
            raise LinkLost(f"{self.registration.address} is {peer}, not {self.registration.instance} as the registry has it")

    async def _write_all(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> None:
        while not self._detaching or self._outbox:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            while self._outbox:
                if not await self._write_in_time(call, self._outbox.popleft()):
                    return
        # Detached: now it is the instance that ends the stream.

    async def _read_all(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> None:
        while (frame := await self._read(call)) is not None:
            self._arrived(frame)
        if not self._detaching:
            raise LinkLost("the instance ended the stream")

    def _arrived(self, frame: FrameT) -> None:
        """Take a frame, now or a moment later. Raises LinkLost."""
        self._take(frame)

    def _take(self, frame: FrameT) -> None:
        try:
            load = self._load_of(frame)
            events_of = self._events(frame)
        except ValueError as error:
            raise LinkLost(f"the instance sent a malformed frame: {error}") from error
        if load is not None:
            self._load, self._load_at_s = load, asyncio.get_running_loop().time()
        for handle, events in events_of.items():
            self._handles.deliver(handle, events)

    async def _write_in_time(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT], command: CommandT) -> bool:
        # Not `asyncio.timeout`: cancelling a write cancels its call, and the reader would take that for its own cancellation.
        limit_s = self._settings.write_timeout_s
        loop = asyncio.get_running_loop()
        limit = loop.call_later(limit_s, self._give_up, f"a command was not taken within {limit_s:g} s")
        try:
            return await _write(call, command)
        finally:
            limit.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> FrameT | None:
        try:
            frame = await call.read()
        except grpc.aio.AioRpcError as error:
            raise LinkLost(f"{error.code().name}: {error.details()}") from error
        return None if frame is grpc.aio.EOF else cast(FrameT, frame)


async def _write(call: grpc.aio.StreamStreamCall[CommandT, FrameT], command: CommandT) -> bool:
    """False where the call is dead: all that a write says of it is INTERNAL, the next read has the cause."""
    try:
        await call.write(command)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True
