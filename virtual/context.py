"""A server's end of a call: the context that a handler is given.

Made by `server` for each call that comes. Behaves as the contexts of grpc.aio do; the conformance suite holds one against the
other. In particular, a client that is gone shows first as the end of its requests, and only then cancels the handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from virtual.charge import Meter
from virtual.stream import MetadataTuple, Metadatum, Outcome, Stream

_Metadata: TypeAlias = grpc.aio.Metadata | Sequence[tuple[str, str | bytes]]

_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class VirtualContext(grpc.aio.ServicerContext[Any, Any]):
    def __init__(self, stream: Stream, handler: grpc.RpcMethodHandler[Any, Any], meter: Meter) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._handler = handler
        self._meter = meter
        self._task: asyncio.Task[None] | None = None
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: MetadataTuple = ()
        self._greeted = False  # initial metadata is sent
        self._answered = False  # so is the outcome
        self._aborted: grpc.aio.AbortError | None = None
        self._gone = False
        self._stopped = False
        timeout_s = stream.headers.timeout_s
        self._deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._timer = None if self._deadline_s is None else self._loop.call_at(self._deadline_s, self.gone)

    # ── for the server ──

    def run(self, handling: asyncio.Task[None]) -> None:
        """`handling` is the handler's task, to be cancelled when the client is gone."""
        self._task = handling

    def gone(self) -> None:
        """The client has let go of the call, its deadline has passed, or the connection is lost."""
        if self._gone:
            return
        self._gone = True
        self._stream.responses.close()
        self._stream.requests.abandon()
        # Not at once: who waits for a message sees the end of them first.
        self._loop.call_soon(self._cancel)

    def stop(self) -> None:
        """The server ends the call. Who waits for room to write is cancelled without a word."""
        if self._gone or self._answered:
            return
        self._gone = True
        self._stream.send_outcome(Outcome(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls"))
        self._stream.requests.abandon()
        self._loop.call_soon(self._cancel)

    def server_stopped(self) -> None:
        self._stopped = True

    def over(self) -> None:
        """The handler has returned."""
        if self._timer is not None:
            self._timer.cancel()
        self._stream.requests.drop()
        self._stream.server_left()

    @property
    def is_gone(self) -> bool:
        return self._gone

    @property
    def aborted(self) -> grpc.aio.AbortError | None:
        return self._aborted

    def check(self) -> None:
        """Raise unless the call can go on."""
        if self._aborted is not None:
            raise self._aborted
        if self._answered:
            raise grpc.aio.UsageError("RPC already finished.")
        if self._stopped:
            raise grpc.aio.BaseError("Server already stopped.")

    def reply(self, message: object) -> None:
        """Send the only response of a call."""
        data = self._encode(message)
        self._refuse_if_too_large(data)
        self._greet(())
        self._stream.responses.push(data, self._meter.charge(message, data))

    def finish(self, code: grpc.StatusCode | None = None, details: str | None = None) -> None:
        """Send the outcome: that which the handler has set, if no other is given."""
        if self._answered:
            return
        self._answered = True
        if not self._gone:
            self._greet(())
            outcome = Outcome(code or self.code(), self._details if details is None else details, self._trailing)
            self._stream.send_outcome(outcome)

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done() and not self._answered:
            self._task.cancel()
        self._stream.responses.close()

    # ── gRPC's interface ──

    async def read(self) -> Any:
        self.check()
        if self._gone:
            await asyncio.sleep(0)  # the cancellation comes first
        if self._stream.requests.awaited:
            return grpc.aio.EOF  # so it is in gRPC: only one may wait
        data = await self._stream.requests.receive()
        self.check()
        if data is None:
            return grpc.aio.EOF
        deserialise = self._handler.request_deserializer
        return data if deserialise is None else deserialise(data)

    async def write(self, message: Any) -> None:
        self.check()
        data = self._encode(message)
        if self._gone:
            await asyncio.sleep(0)  # the cancellation comes first
            raise grpc.aio.InternalError("the call is dead")
        self._refuse_if_too_large(data)
        self._greet(())
        if not await self._stream.responses.send(data, self._meter.charge(message, data)):
            raise grpc.aio.InternalError("the call is dead")

    async def send_initial_metadata(self, initial_metadata: _Metadata) -> None:
        self.check()
        if self._greeted:
            raise grpc.aio.UsageError("Send initial metadata failed: already sent")
        self._greet(_metadata(initial_metadata))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: _Metadata = ()) -> NoReturn:
        if self._aborted is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self._aborted = grpc.aio.AbortError("Locally aborted.")
        self._code, self._details = _status_code(code), details or self._details
        self._trailing = _metadata(trailing_metadata) or self._trailing
        self.finish()
        if self._gone:
            raise grpc.aio.InternalError("the call is dead")
        raise self._aborted

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: _Metadata) -> None:
        self._trailing = _metadata(trailing_metadata)

    def trailing_metadata(self) -> Any:
        return self._trailing

    def invocation_metadata(self) -> Any:
        return self._stream.headers.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = _status_code(code)

    def code(self) -> grpc.StatusCode:
        return self._code or grpc.StatusCode.OK

    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details

    def set_compression(self, compression: grpc.Compression) -> None:
        """Nothing is compressed in memory."""

    def disable_next_message_compression(self) -> None:
        """Nothing is compressed in memory."""

    def peer(self) -> str:
        return self._stream.peer

    def peer_identities(self) -> Iterable[bytes] | None:
        return None

    def peer_identity_key(self) -> str | None:
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def time_remaining(self) -> Any:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._loop.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        assert self._task is not None
        self._task.add_done_callback(lambda _task: callback(self))

    def cancelled(self) -> bool:
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._answered

    def _greet(self, metadata: MetadataTuple) -> None:
        if not self._greeted:
            self._greeted = True
            self._stream.send_initial_metadata(metadata)

    def _refuse_if_too_large(self, data: bytes) -> None:
        too_large = self._stream.too_large("SERVER", data)
        if too_large is not None:
            self._stream.send_outcome(too_large)
            self.gone()
            raise grpc.aio.InternalError(too_large.details)

    def _encode(self, message: object) -> bytes:
        serialise = self._handler.response_serializer
        data = message if serialise is None else serialise(message)
        if not isinstance(data, bytes):
            raise TypeError(f"a message must be bytes, not {type(data).__name__}")
        return data


class RequestIterator:
    """The requests of a call for handlers that iterate them."""

    def __init__(self, context: VirtualContext) -> None:
        self._context = context

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await self._context.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request


def _metadata(pairs: _Metadata) -> MetadataTuple:
    return tuple(Metadatum(*pair) for pair in pairs)


def _status_code(code: grpc.StatusCode | int) -> grpc.StatusCode:
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES.get(code, grpc.StatusCode.UNKNOWN)
