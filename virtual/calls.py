"""A client's end of a call, in gRPC's four shapes.

Made by `channel` for each call that a stub starts. Behaves as the calls of grpc.aio do, in what it raises and when; the
conformance suite holds one against the other. Owns the call's deadline and its outcome; what travels is the stream's.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import grpc.aio

from pdd.telemetry import get_logger
from virtual.charge import Charge, Meter
from virtual.connection import Connection
from virtual.dialer import Dialer
from virtual.stream import Headers, MetadataTuple, Outcome, Stream

Requests: TypeAlias = AsyncIterable[Any] | Iterable[Any]

_CANCELLED = Outcome(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
_EXPIRED = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
# All that gRPC says to a writer whose call has ended under it, whatever the cause.
_DEAD = Outcome(grpc.StatusCode.INTERNAL, "Internal error from Core")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    """A method as a stub describes it."""

    name: str  # "/package.Service/Method"
    serialise: Callable[[Any], bytes] | None  # None: messages are bytes
    deserialise: Callable[[bytes], Any] | None
    meter: Meter

    def encode(self, request: object) -> tuple[bytes, Charge]:
        data = request if self.serialise is None else self.serialise(request)
        if not isinstance(data, bytes):
            raise TypeError(f"a message of {self.name} must be bytes, not {type(data).__name__}")
        return data, self.meter.charge(request, data)

    def decode(self, data: bytes) -> Any:
        return data if self.deserialise is None else self.deserialise(data)


@dataclass(frozen=True, slots=True)
class CallOptions:
    timeout_s: float | None
    metadata: MetadataTuple
    wait_for_ready: bool


class CallOwner(Protocol):
    """The channel."""

    @property
    def dialer(self) -> Dialer: ...

    def started(self, call: AnyCall) -> None: ...

    def ended(self, call: AnyCall) -> None: ...


class AnyCall(grpc.aio.Call):
    """What the four shapes share."""

    def __init__(
        self, owner: CallOwner, method: Method, options: CallOptions, request: tuple[bytes, Charge] | None = None
    ) -> None:
        """`request` is the only one; None where they are streamed."""
        loop = asyncio.get_running_loop()
        self.wait_for_ready = options.wait_for_ready
        self._loop = loop
        self._owner = owner
        self._method = method
        self._metadata = options.metadata
        self._request = request
        self._stream: Stream | None = None  # from the connection on
        self._outcome: Outcome | None = None  # how the call has ended, for the caller
        self._verdict: Outcome | None = None  # the server's, which counts once its messages have been read
        self._initial: MetadataTuple = ()
        self._connected = asyncio.Event()  # all three are set at the end, too
        self._greeted = asyncio.Event()
        self._finished = asyncio.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline_s = None if options.timeout_s is None else loop.time() + options.timeout_s
        self._timer = None if self._deadline_s is None else loop.call_at(self._deadline_s, self._give_up, _EXPIRED)
        owner.started(self)
        owner.dialer.start(self)

    # ── the connection and the stream ──

    def connected(self, connection: Connection) -> None:
        self._stream = Stream(connection, Headers(self._method.name, self._metadata, self.time_remaining()), self)
        self._stream.begin()
        self._connected.set()
        if self._request is None:
            return
        too_large = self._stream.too_large("CLIENT", self._request[0])
        if too_large is not None:
            self._give_up(too_large)
            return
        self._stream.requests.push(*self._request)
        self._stream.end_requests()

    def unreachable(self, why: str) -> None:
        self._give_up(Outcome(grpc.StatusCode.UNAVAILABLE, why))

    def initial_metadata_came(self, metadata: MetadataTuple) -> None:
        self._initial = metadata
        self._greeted.set()

    def outcome_came(self, outcome: Outcome) -> None:
        assert self._stream is not None
        self._verdict = outcome
        self._stream.requests.close()
        self._settle()

    def lost(self, outcome: Outcome) -> None:
        self._give_up(outcome)

    # ── gRPC's interface ──

    def cancelled(self) -> bool:
        return self._outcome is not None and self._outcome.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._outcome is not None

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._loop.time())

    def cancel(self) -> bool:
        return self._give_up(_CANCELLED)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        await self._greeted.wait()
        return grpc.aio.Metadata(*self._initial)

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self._end()).trailing)

    async def code(self) -> grpc.StatusCode:
        return (await self._end()).code

    async def details(self) -> str:
        return (await self._end()).details

    async def debug_error_string(self) -> str:
        return (await self._end()).details

    async def wait_for_connection(self) -> None:
        await self._connected.wait()
        if self.done():
            await self._raise_unless_ok()

    # ── for the shapes ──

    def _settle(self) -> None:
        """Let the server's verdict count if there is nothing left to read."""
        assert self._stream is not None
        if self._verdict is not None and self._stream.responses.empty and self._finish(self._verdict):
            self._stream.client_left()

    def _give_up(self, outcome: Outcome) -> bool:
        """End the call from here; False where it has ended. What was not read is lost."""
        if not self._finish(outcome):
            return False
        if self._stream is not None:
            self._stream.reset()
        return True

    def _finish(self, outcome: Outcome) -> bool:
        if self._outcome is not None:
            return False
        self._outcome = outcome
        if self._timer is not None:
            self._timer.cancel()
        self._owner.dialer.forget(self)
        self._owner.ended(self)
        for event in (self._connected, self._greeted, self._finished):
            event.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        return True

    async def _end(self) -> Outcome:
        await self._finished.wait()
        assert self._outcome is not None
        return self._outcome

    async def _raise_unless_ok(self) -> None:
        outcome = await self._end()
        if outcome is _CANCELLED:
            raise asyncio.CancelledError
        if outcome.code is not grpc.StatusCode.OK:
            self._raise(outcome)

    def _raise(self, outcome: Outcome) -> NoReturn:
        initial, trailing = grpc.aio.Metadata(*self._initial), grpc.aio.Metadata(*outcome.trailing)
        raise grpc.aio.AioRpcError(outcome.code, initial, trailing, outcome.details, outcome.details)


class _Style(enum.Enum):
    ITERATOR = enum.auto()
    READ_WRITE = enum.auto()


def _check_style(used: _Style | None, style: _Style) -> _Style:
    if used not in (None, style):
        raise grpc.aio.UsageError("The iterator and read/write APIs may not be mixed on a single RPC.")
    return style


class _OneReply(AnyCall):
    """A call that is awaited."""

    _reply: bytes | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_for_reply().__await__()

    async def _wait_for_reply(self) -> Any:
        try:
            await self._raise_unless_ok()
        except asyncio.CancelledError:
            self.cancel()
            raise
        assert self._reply is not None
        return self._method.decode(self._reply)

    def _settle(self) -> None:
        assert self._stream is not None
        if self._reply is None:
            self._reply = self._stream.responses.take()
        super()._settle()


class _ManyReplies(AnyCall):
    """A call whose replies are read or iterated."""

    _reading_style: _Style | None = None
    _iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        self._reading_style = _check_style(self._reading_style, _Style.ITERATOR)
        if self._iterator is None:
            self._iterator = self._replies()
        return self._iterator

    async def read(self) -> Any:
        if self.done():
            await self._raise_unless_ok()
            return grpc.aio.EOF
        self._reading_style = _check_style(self._reading_style, _Style.READ_WRITE)
        return await self._read()

    async def _replies(self) -> AsyncIterator[Any]:
        while (reply := await self._read()) is not grpc.aio.EOF:
            yield reply

    async def _read(self) -> Any:
        try:
            await self._connected.wait()
            if self._stream is not None and self._stream.responses.awaited:
                raise grpc.aio.UsageError("another task reads from this call already; gRPC would serve one of them or none")
            data = None if self._stream is None else await self._stream.responses.receive()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is None:
            await self._raise_unless_ok()
            return grpc.aio.EOF
        self._settle()
        return self._method.decode(data)


class _ManyRequests(AnyCall):
    """A call whose requests are written, or taken from an iterator."""

    def __init__(self, owner: CallOwner, method: Method, options: CallOptions, requests: Requests | None) -> None:
        super().__init__(owner, method, options)
        self._half_closed = False
        self._writing_style = _Style.READ_WRITE if requests is None else _Style.ITERATOR
        self._writer: asyncio.Task[None] | None = None
        if requests is not None:
            self._writer = self._loop.create_task(self._write_all(requests), name=f"requests of {method.name}")

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self._writer is not None:
            self._writer.cancel()
        return True

    async def write(self, request: Any) -> None:
        _check_style(self._writing_style, _Style.READ_WRITE)
        await self._write(request)

    async def done_writing(self) -> None:
        _check_style(self._writing_style, _Style.READ_WRITE)
        await self._end_requests()

    async def _write(self, request: Any) -> None:
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        data, charge = self._method.encode(request)
        try:
            await self._connected.wait()
            if self._stream is None:
                await self._raise_unless_ok()
                return
            too_large = self._stream.too_large("CLIENT", data)
            if too_large is not None:
                self._give_up(too_large)
            sent = await self._stream.requests.send(data, charge)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not sent:
            self._write_failed()

    def _write_failed(self) -> NoReturn:
        if self._outcome is _CANCELLED:
            raise asyncio.CancelledError
        self._raise(_DEAD)

    async def _end_requests(self) -> None:
        if self.done() or self._half_closed:
            return
        self._half_closed = True
        try:
            await self._connected.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._stream is not None and not self.done():
            self._stream.end_requests()

    async def _write_all(self, requests: Requests) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self._write(request)
            else:
                for request in requests:
                    await self._write(request)
            await self._end_requests()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended, and its outcome says why
        except asyncio.CancelledError:
            self.cancel()
            raise
        except Exception:
            log.debug("the requests' iterator failed; the call is cancelled", method=self._method.name, exc_info=True)
            self.cancel()


class UnaryUnaryCall(_OneReply, grpc.aio.UnaryUnaryCall[Any, Any]):
    pass


class UnaryStreamCall(_ManyReplies, grpc.aio.UnaryStreamCall[Any, Any]):
    pass


class StreamUnaryCall(_ManyRequests, _OneReply, grpc.aio.StreamUnaryCall[Any, Any]):
    pass


class StreamStreamCall(_ManyRequests, _ManyReplies, grpc.aio.StreamStreamCall[Any, Any]):
    def _write_failed(self) -> NoReturn:
        # As in gRPC, the failed write is the call's outcome now, over the cause.
        if self._outcome is not _CANCELLED and not self._give_up(_DEAD):
            self._outcome = _DEAD
        super()._write_failed()
