"""A channel that generated stubs take as they take gRPC's.

Made by a `Host` of the network. Owns the calls that it has started; where they go is the dialer's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio

from virtual.call import AnyCall, CallOptions, Method
from virtual.calls import Requests, StreamStreamCall, StreamUnaryCall, UnaryStreamCall, UnaryUnaryCall
from virtual.charge import Meter
from virtual.dialer import Dialer
from virtual.stream import MetadataTuple, Metadatum

_Metadata: TypeAlias = grpc.aio.Metadata | Sequence[tuple[str, str | bytes]] | None
_USER_AGENT = Metadatum("user-agent", "virtual")


class VirtualChannel(grpc.aio.Channel):
    def __init__(self, dialer: Dialer, meter: Meter) -> None:
        self.dialer = dialer
        self._meter = meter
        self._calls: dict[AnyCall, None] = {}
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        return _UnaryUnary(self, Method(method, request_serializer, response_deserializer, self._meter))

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        return _UnaryStream(self, Method(method, request_serializer, response_deserializer, self._meter))

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        return _StreamUnary(self, Method(method, request_serializer, response_deserializer, self._meter))

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        return _StreamStream(self, Method(method, request_serializer, response_deserializer, self._meter))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if try_to_connect:
            self.dialer.wake()
        return self.dialer.state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.dialer.state_changed(last_observed_state)

    async def channel_ready(self) -> None:
        while (state := self.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    async def close(self, grace: float | None = None) -> None:
        """Take no new calls, give those that run `grace` seconds, cancel the rest."""
        self._closed = True
        if grace and self._calls:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        for call in tuple(self._calls):
            call.cancel()
        self.dialer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # ── for calls ──

    def options(self, timeout: float | None, metadata: _Metadata, wait_for_ready: bool | None) -> CallOptions:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        pairs: MetadataTuple = (*(Metadatum(*pair) for pair in metadata or ()), _USER_AGENT)
        return CallOptions(timeout, pairs, bool(wait_for_ready))

    def started(self, call: AnyCall) -> None:
        self._calls[call] = None
        self._idle.clear()

    def ended(self, call: AnyCall) -> None:
        del self._calls[call]
        if not self._calls:
            self._idle.set()


class _Callable:
    """A method of a channel. Credentials and compression mean nothing in memory."""

    def __init__(self, channel: VirtualChannel, method: Method) -> None:
        self._channel = channel
        self._method = method


class _UnaryUnary(_Callable, grpc.aio.UnaryUnaryMultiCallable[Any, Any]):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: _Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> UnaryUnaryCall:
        options = self._channel.options(timeout, metadata, wait_for_ready)
        return UnaryUnaryCall(self._channel, self._method, options, self._method.encode(request))


class _UnaryStream(_Callable, grpc.aio.UnaryStreamMultiCallable[Any, Any]):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: _Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> UnaryStreamCall:
        options = self._channel.options(timeout, metadata, wait_for_ready)
        return UnaryStreamCall(self._channel, self._method, options, self._method.encode(request))


class _StreamUnary(_Callable, grpc.aio.StreamUnaryMultiCallable[Any, Any]):
    def __call__(
        self,
        request_iterator: Requests | None = None,
        timeout: float | None = None,
        metadata: _Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> StreamUnaryCall:
        options = self._channel.options(timeout, metadata, wait_for_ready)
        return StreamUnaryCall(self._channel, self._method, options, request_iterator)


class _StreamStream(_Callable, grpc.aio.StreamStreamMultiCallable[Any, Any]):
    def __call__(
        self,
        request_iterator: Requests | None = None,
        timeout: float | None = None,
        metadata: _Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> StreamStreamCall:
        options = self._channel.options(timeout, metadata, wait_for_ready)
        return StreamStreamCall(self._channel, self._method, options, request_iterator)
