"""The serving side of an attached stream: one long-lived call that carries all requests between a gateway and an instance.

Called by the relay's, main's and prefill's `Attach` handlers with a session, which decides everything; this shell only moves
messages. Reading and writing are tasks of their own, so that a peer that does not read never holds back its commands, and the
engine never waits for either. Whatever ends the stream, the session is closed exactly once, and before the call is answered.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pdd.identity import Instance
from pdd.telemetry import get_logger
from pdd.v1 import decode_pb2, identity_pb2, prefill_pb2

PROTOCOL = "pdd.v1"
HELLO_TIMEOUT_S = 10.0  # for the peer's first command
WRITE_TIMEOUT_S = 30.0  # for one frame to leave; a peer that takes longer is as good as gone
FAREWELL_TIMEOUT_S = 2.0  # for the last frame to leave before the call is answered

log = get_logger(__name__)

# What a write raises on a call that is dying, by how far it got.
_DEAD_CALL = (grpc.aio.AioRpcError, grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError)

CommandT = TypeVar("CommandT", decode_pb2.DecodeCommand, prefill_pb2.PrefillCommand)
FrameT = TypeVar("FrameT", decode_pb2.DecodeFrame, prefill_pb2.PrefillFrame)
CommandT_contra = TypeVar("CommandT_contra", decode_pb2.DecodeCommand, prefill_pb2.PrefillCommand, contravariant=True)
FrameT_co = TypeVar("FrameT_co", decode_pb2.DecodeFrame, prefill_pb2.PrefillFrame, covariant=True)


class StreamEnd(Exception):
    """The stream is to end; `code` is what the peer gets to see, OK where it left in good order."""

    def __init__(self, code: grpc.StatusCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class Attachment:
    """A session's hold on its stream. Plain calls, safe from the event loop at any time."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._ended = asyncio.Event()
        self._end: StreamEnd | None = None

    def wake(self) -> None:
        """`take` has something to send."""
        self._woken.set()

    def end(self, reason: StreamEnd) -> None:
        """End the stream, also while a write is stuck. The first reason counts."""
        self._end = self._end or reason
        self._ended.set()
        self._woken.set()

    @property
    def ended(self) -> bool:
        return self._end is not None

    async def until_woken(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    async def until_ended(self) -> None:
        await self._ended.wait()
        assert self._end is not None
        raise self._end


class AttachedSession(Protocol, Generic[CommandT_contra, FrameT_co]):
    """What a stream is for. Its calls return at once."""

    attachment: Attachment

    def accept(self, command: CommandT_contra) -> None:
        """A command other than the first Hello. Raises StreamEnd."""

    def take(self) -> FrameT_co | None:
        """Everything that is to be sent now, as one frame."""

    def close(self) -> None:
        """The stream is over: let go of everything. Called once."""


def hello_from(instance: Instance) -> identity_pb2.Hello:
    return identity_pb2.Hello(**{"from": instance.to_proto()}, protocol=PROTOCOL)


async def serve_attached(
    context: grpc.aio.ServicerContext[CommandT, FrameT], session: AttachedSession[CommandT, FrameT], hello: FrameT
) -> None:
    """Move messages until the stream ends, by whomever; then close the session and answer the call.

    Raises CancelledError where the call is dead, AbortError where it was answered with a status other than OK.
    """
    attachment = session.attachment
    end = StreamEnd(grpc.StatusCode.OK)
    writing = asyncio.create_task(_write(context, session, hello))
    writing.add_done_callback(lambda _task: attachment.end(StreamEnd(grpc.StatusCode.OK)))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_read(context, session))
            tasks.create_task(attachment.until_ended())
    except* StreamEnd as ends:
        end = _first(ends)
    finally:
        session.close()
        attachment.end(end)
        # Never cut a write short on a live call: gRPC can't send a status while one is under way, and the peer would hang.
        written, _ = await asyncio.wait([writing], timeout=FAREWELL_TIMEOUT_S)
        writing.cancel()
    if written:
        writing.result()  # raises what nobody expected
    if end.code is not grpc.StatusCode.OK and not context.done():
        await context.abort(end.code, str(end))


async def _read(context: grpc.aio.ServicerContext[CommandT, FrameT], session: AttachedSession[CommandT, FrameT]) -> None:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            first = await _next_command(context)
    except TimeoutError:
        raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, f"no Hello within {HELLO_TIMEOUT_S:g} s") from None
    if first is grpc.aio.EOF:
        raise StreamEnd(grpc.StatusCode.OK)
    if first.WhichOneof("command") != "hello" or first.hello.protocol != PROTOCOL:
        spoken = first.hello.protocol or first.WhichOneof("command")
        text = f"the first command must be Hello with protocol {PROTOCOL!r}, got {spoken!r}"
        raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, text)
    while True:
        # No deadline: a peer may have nothing to say for hours. Keepalive pings find a dead one.
        command = await _next_command(context)
        if command is grpc.aio.EOF:
            # A half-closed stream can't be told from a dead peer's: it voids its handles either way.
            raise StreamEnd(grpc.StatusCode.OK)
        session.accept(command)


async def _next_command(context: grpc.aio.ServicerContext[CommandT, FrameT]) -> CommandT:
    try:
        return await context.read()
    except DecodeError as error:
        text = f"a command is not the message that protos/pdd/v1 describes: {error}"
        log.warning("a stream ends: a command can't be decoded", peer=context.peer(), error=str(error))
        raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, text) from error


async def _write(
    context: grpc.aio.ServicerContext[CommandT, FrameT], session: AttachedSession[CommandT, FrameT], hello: FrameT
) -> None:
    attachment = session.attachment
    frame: FrameT | None = hello
    try:
        while not attachment.ended:
            if frame is not None:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await context.write(frame)
            await attachment.until_woken()
            frame = session.take()
    except TimeoutError:
        attachment.end(StreamEnd(grpc.StatusCode.DEADLINE_EXCEEDED, f"a frame was not taken within {WRITE_TIMEOUT_S:g} s"))
    except _DEAD_CALL:
        return  # and with it the stream, for a reason that gRPC does not tell here


def _first(ends: BaseExceptionGroup[StreamEnd]) -> StreamEnd:
    """The reason to report: one with something to say, where reader and session ended at once."""
    leaves = [leaf for leaf in ends.exceptions if isinstance(leaf, StreamEnd)]
    return next((leaf for leaf in leaves if leaf.code is not grpc.StatusCode.OK), leaves[0])
