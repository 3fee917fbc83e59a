"""A client's end of a call, in gRPC's four shapes: how requests are written, and responses read.

Made by `channel`, which picks the shape; what they share is in `call`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable
from typing import Any, NoReturn, TypeAlias

import grpc.aio

from virtual.call import CANCELLED, DEAD, AnyCall, CallOptions, CallOwner, Method

Requests: TypeAlias = AsyncIterable[Any] | Iterable[Any]

log = logging.getLogger(__name__)  # as gRPC does, which it stands in for


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
        if self._outcome is CANCELLED:
            raise asyncio.CancelledError
        self._raise(DEAD)

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
            log.debug("the requests of %s failed; the call is cancelled", self._method.name, exc_info=True)
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
        if self._outcome is not CANCELLED and not self._give_up(DEAD):
            self._outcome = DEAD
        super()._write_failed()
