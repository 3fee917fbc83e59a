"""A client's end of a call: what gRPC's four shapes share.

Made by `channel`, in one of the shapes of `calls`, for each call that a stub starts. Behaves as the calls of grpc.aio do, in what
it raises and when; the conformance suite holds one against the other. Owns the call's deadline and its outcome; what travels is
the stream's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from virtual.charge import Charge, Meter
from virtual.connection import Connection
from virtual.dialer import Dialer
from virtual.stream import Headers, MetadataTuple, Outcome, Stream

CANCELLED = Outcome(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
_EXPIRED = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
# All that gRPC says to a writer whose call has ended under it, whatever the cause.
DEAD = Outcome(grpc.StatusCode.INTERNAL, "Internal error from Core")


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
        return self._give_up(CANCELLED)

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
        if outcome is CANCELLED:
            raise asyncio.CancelledError
        if outcome.code is not grpc.StatusCode.OK:
            self._raise(outcome)

    def _raise(self, outcome: Outcome) -> NoReturn:
        initial, trailing = grpc.aio.Metadata(*self._initial), grpc.aio.Metadata(*outcome.trailing)
        raise grpc.aio.AioRpcError(outcome.code, initial, trailing, outcome.details, outcome.details)
