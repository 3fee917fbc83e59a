"""One Push call as its server sees it: reads that can be given up, replies with a deadline, refusals that arrive.

Made by `receiver` for each call. Owns the read under way; knows nothing of what the messages mean.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

import grpc.aio

from pdd.v1 import kv_pb2

PushContext: TypeAlias = "grpc.aio.ServicerContext[kv_pb2.PushRequest, kv_pb2.PushReply]"


class PushStream:
    """Use it as `async with`; leaving gives up the read under way."""

    def __init__(self, context: PushContext, answer_s: float, linger_s: float) -> None:
        self._context = context
        self._answer_s = answer_s
        self._linger_s = linger_s
        self._reading: asyncio.Task[kv_pb2.PushRequest] | None = None
        self._deadline: asyncio.Timeout | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def read(self, until_s: float) -> kv_pb2.PushRequest | None:
        """The next message; None at the end of the stream, closed or dead. Raises TimeoutError at `until_s`, in loop time."""
        # A read that was given up still takes the next message, and gRPC allows no second one beside it: so it's kept.
        if self._reading is None:
            self._reading = asyncio.create_task(_read(self._context))
        try:
            async with asyncio.timeout_at(until_s) as self._deadline:
                message = await asyncio.shield(self._reading)
        finally:
            self._deadline = None
        self._reading = None
        return message if isinstance(message, kv_pb2.PushRequest) else None

    def interrupt(self) -> None:
        """Make the read under way, if any, raise TimeoutError now."""
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def answer(self, reply: kv_pb2.PushReply) -> bool:
        """Whether the call could still take it."""
        try:
            async with asyncio.timeout(self._answer_s):
                await self._context.write(reply)
        except (TimeoutError, grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False  # the call died under the write; gRPC reports that as one of these, whatever the cause
        return True

    async def refuse(self, refusal: kv_pb2.PushReply) -> None:
        """Say no, then read past what was under way, until the sender has heard it or a while has gone by.

        If the stream ended under a sender that still writes, its write would fail, and gRPC would lose the refusal over that.
        """
        if not await self.answer(refusal):
            return
        until_s = asyncio.get_running_loop().time() + self._linger_s
        with suppress(TimeoutError):
            while await self.read(until_s) is not None:
                pass


async def _read(context: PushContext) -> kv_pb2.PushRequest:
    return await context.read()
