"""A server that `add_X_to_server` and servicers take as they take gRPC's.

Made by a `Host` of the network, on whose addresses it listens. Owns the calls that run; a handler is a task of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, TypeAlias

import grpc
import grpc.aio

from virtual.charge import Meter
from virtual.connection import Connection
from virtual.context import RequestIterator, VirtualContext
from virtual.stream import MetadataTuple, Outcome, Stream

log = logging.getLogger(__name__)  # as gRPC does, which it stands in for

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Addresses(Protocol):
    """The host's addresses."""

    def bind(self, address: str, server: VirtualServer) -> int: ...

    def release(self, server: VirtualServer) -> None: ...


class _CallDetails(NamedTuple):
    method: str
    invocation_metadata: MetadataTuple


class VirtualServer(grpc.aio.Server):
    def __init__(self, addresses: Addresses, meter: Meter) -> None:
        self.listening = False
        self._addresses = addresses
        self._meter = meter
        self._registered: dict[str, Handler] = {}  # by full method name
        self._generic: list[grpc.GenericRpcHandler] = []
        self._connections: dict[Connection, None] = {}
        self._running: dict[VirtualContext, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        self._registered.update({f"/{service_name}/{name}": handler for name, handler in method_handlers.items()})

    def add_insecure_port(self, address: str) -> int:
        """Listen there from `start` on; the port, chosen where `address` has 0. Raises RuntimeError where that can't be."""
        return self._addresses.bind(address, self)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        raise RuntimeError(f"Failed to bind to address {address}: there is no encryption in memory; use add_insecure_port")

    async def start(self) -> None:
        self.listening = True

    async def stop(self, grace: float | None) -> None:
        """Take no new calls, give those that run `grace` seconds, cancel the rest. Does not wait for their handlers."""
        self._addresses.release(self)
        if self.listening:
            self.listening = False
            for connection in self._connections:
                connection.go_away()
        if grace:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        for context in tuple(self._running):
            context.stop()
        await asyncio.sleep(0)  # until the handlers are cancelled
        for context in tuple(self._running):
            context.server_stopped()
        self._stopped.set()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Whether the server is still there after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False

    # ── for connections ──

    def connected(self, connection: Connection) -> None:
        self._connections[connection] = None

    def disconnected(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def accept(self, stream: Stream) -> None:
        """A call has come."""
        if not self.listening:
            stream.send_outcome(Outcome(grpc.StatusCode.UNAVAILABLE, "the server is shutting down"))
            return
        handler = self._handler(stream)
        if handler is None:
            stream.send_outcome(Outcome(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            return
        context = VirtualContext(stream, handler, self._meter)
        stream.accepted_by(context)
        self._running[context] = None
        self._idle.clear()
        name = f"handler of {stream.headers.method}"
        context.run(asyncio.get_running_loop().create_task(self._serve(handler, context, stream.headers.method), name=name))

    def _handler(self, stream: Stream) -> Handler | None:
        details = _CallDetails(stream.headers.method, stream.headers.metadata)
        registered = self._registered.get(details.method)
        if registered is not None:
            return registered
        found = (generic.service(details) for generic in self._generic)  # type: ignore[arg-type]
        return next((handler for handler in found if handler is not None), None)

    async def _serve(self, handler: Handler, context: VirtualContext, method: str) -> None:
        try:
            await _handle(handler, context)
            if context.aborted is not None:
                log.error("%s went on after abort", method)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            log.debug("%s was cancelled", method)
        except Exception as error:
            if context.is_gone:
                log.debug("%s failed after its call: %r", method, error)
                return
            log.exception("%s failed", method)
            code = context.code() if context.code() is not grpc.StatusCode.OK else grpc.StatusCode.UNKNOWN
            context.finish(code, f"Unexpected {type(error)}: {error}")
        finally:
            context.over()
            del self._running[context]
            if not self._running:
                self._idle.set()


async def _handle(handler: Handler, context: VirtualContext) -> None:
    """Call the handler, whatever its kind, and send what it gives."""
    request: Any = RequestIterator(context)
    if not handler.request_streaming:
        request = await context.read()
        if request is grpc.aio.EOF:
            return  # the client was gone before it said anything
    given = _behaviour(handler)(request, context)
    if handler.response_streaming:
        await _write_all(given, context)
        context.check()
        context.finish()
        return
    message = await given if inspect.isawaitable(given) else given
    context.check()
    if context.code() is grpc.StatusCode.OK:
        context.reply(message)
    context.finish()


async def _write_all(given: Any, context: VirtualContext) -> None:
    if inspect.isawaitable(given):
        await given  # it has written its responses itself
    elif inspect.isasyncgen(given):
        async with aclosing(given):
            async for message in given:
                context.check()
                await context.write(message)
    else:
        for message in given:
            context.check()
            await context.write(message)


def _behaviour(handler: Handler) -> Any:
    if handler.request_streaming:
        return handler.stream_stream if handler.response_streaming else handler.stream_unary
    return handler.unary_stream if handler.response_streaming else handler.unary_unary
