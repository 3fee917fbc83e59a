"""One Push call as its server sees it: reads, replies with a deadline, refusals that arrive.

Made by `receiver` for each call. Owns what is being said on it; knows nothing of what the messages mean.

A read is never given up: gRPC goes on with it all the same, and allows no second one beside it. So a transfer that is ended from
outside is not woken from its read. The refusal is said beside it, and what then comes is read past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pdd.telemetry import get_logger
from pdd.transfer.messages import PushContext, PushMessage
from pdd.v1 import kv_pb2

log = get_logger(__name__)


class PushStream:
    """Use it as `async with`, in the task that reads; leaving waits until a refusal under way is said."""

    def __init__(self, context: PushContext, answer_s: float, linger_s: float) -> None:
        self._context = context
        self._answer_s = answer_s
        self._linger_s = linger_s
        self._saying = asyncio.Lock()  # gRPC allows one write at a time
        self._reading: asyncio.Task[object] | None = None  # a read that outlasted a `wait`
        self._refusing: asyncio.Task[bool] | None = None
        self._lingering = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._lingering.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        try:
            await self._lingering.__aexit__(kind, error, trace)
        except TimeoutError:
            kind = None  # the sender was heard out for long enough
        if self._reading is not None:
            self._reading.cancel()
        if self._refusing is not None:
            try:
                if kind is None:
                    await asyncio.wait((self._refusing,))
            finally:
                self._refusing.cancel()
        return kind is None

    async def read(self) -> PushMessage | None:
        """The next message; None at the end of the stream, closed or dead. Once refused, whatever comes is passed over.

        What can't be decoded ends the call with INVALID_ARGUMENT; AbortError is raised.
        """
        message = await self._next()
        while self._refusing is not None and message is not None:
            message = await self._next()
        return message

    async def wait(self, until: asyncio.Event, timeout_s: float) -> bool:
        """Wait for a message, for `until` or for the time; whether a message, or the end of the stream, is there to be read."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._context.read(), name="message of a transfer")
        waiting = asyncio.create_task(until.wait(), name="another transfer's end")
        try:
            await asyncio.wait((self._reading, waiting), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return self._reading.done()

    async def _next(self) -> PushMessage | None:
        reading, self._reading = self._reading, None
        try:
            message = await (self._context.read() if reading is None else reading)
        except DecodeError as error:
            log.warning("a transfer ends: a message can't be decoded", peer=self._context.peer(), error=str(error))
            async with self._saying:  # gRPC can't send a status while a write is under way
                text = f"a message is not the PushRequest that protos/pdd/v1/kv.proto describes: {error}"
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return message if isinstance(message, PushMessage) else None

    async def answer(self, reply: kv_pb2.PushReply) -> bool:
        """Whether the call could still take it."""
        async with self._saying:
            try:
                async with asyncio.timeout(self._answer_s):
                    await self._context.write(reply)
            except (TimeoutError, grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return False  # the call died under the write; gRPC reports that as one of these, whatever the cause
        return True

    def refuse(self, refusal: kv_pb2.PushReply) -> None:
        """Say no at once, once. The reader goes on until the sender has heard it and ends the stream, or a while has gone by.

        If the stream ended under a sender that still writes, its write would fail, and gRPC would lose the refusal over that.
        """
        if self._refusing is None:
            self._refusing = asyncio.create_task(self.answer(refusal), name="refusal of a transfer")
            self._lingering.reschedule(asyncio.get_running_loop().time() + self._linger_s)

    @contextmanager
    def refusing_after(self, delay_s: float, refusal: kv_pb2.PushReply) -> Iterator[None]:
        """Refuse if the body takes longer."""
        timer = asyncio.get_running_loop().call_later(delay_s, self.refuse, refusal)
        try:
            yield
        finally:
            timer.cancel()
