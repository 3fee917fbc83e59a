"""The client for asyncio.

A shell: what is asked, read and tried again is decided in the modules beside it. Runs on any event loop, a virtual one included.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import grpc.aio

from pdd.client.answer import Delta, Metadata, Model, Reading, Result, served_models, whole_answer
from pdd.client.errors import Report, report_of
from pdd.client.request import DEFAULT_ADDRESS, Request, request_metadata
from pdd.client.retry import DEFAULT_TIMEOUT_S, Attempts, Retry
from pdd.rpc.channel import OpenChannel, open_channel
from pdd.v1 import inference_pb2
from pdd.v1.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from pdd.v1.inference_pb2_grpc import InferenceAsyncStub

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateReply]"


_CLIENT_LEFT = Report(grpc.StatusCode.CANCELLED, "its channel is closed")


class AsyncClient:
    """Use it as `async with`; leaving closes the channel, which ends the requests that still run."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        open_channel: OpenChannel = open_channel,
        draw: Callable[[], float] = random.random,  # noqa: TID251  # a client stands outside the mesh
    ) -> None:
        """`address` is host:port of the gateway's gRPC API. `timeout_s` holds for requests that give none of their own.

        `draw` gives a number in [0, 1): how much of a wait between two attempts is waited for.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._retry = retry
        self._open_channel = open_channel
        self._draw = draw

    async def __aenter__(self) -> Self:
        self._channel = self._open_channel(self.address)
        await self._channel.__aenter__()
        self._stub: InferenceAsyncStub = InferenceStub(self._channel)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._channel.close()

    @asynccontextmanager
    async def generate(
        self, request: Request, *, timeout_s: float | None = None, request_id: str = "", traceparent: str = ""
    ) -> AsyncIterator[AsyncAnswer]:
        """Send the request; iterate what it gives for the answer's deltas. Leaving the context early cancels the request.

        Errors come while iterating: a ClientError, which says what to do. `timeout_s` is for the whole answer and travels along,
        so that the mesh stops too when it has passed. `request_id` is a label for the mesh's logs, `traceparent` as W3C has it.
        """
        message, metadata = request.to_proto(), request_metadata(request_id, traceparent)

        def start(left_s: float) -> StreamCall:
            return self._stub.Generate(message, timeout=left_s, metadata=metadata)

        answer = AsyncAnswer(start, self._attempts(timeout_s))
        try:
            yield answer
        finally:
            answer.cancel()

    async def generate_once(
        self, request: Request, *, timeout_s: float | None = None, request_id: str = "", traceparent: str = ""
    ) -> Result:
        """The whole answer in one piece; the rest as for `generate`. Raises ClientError."""
        response, initial = await self._unary(
            self._stub.GenerateOnce, request.to_proto(), timeout_s, request_metadata(request_id, traceparent)
        )
        return whole_answer(response, initial)

    async def list_models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Empty while the mesh lacks an instance. Raises ClientError."""
        response, _ = await self._unary(self._stub.ListModels, inference_pb2.ListModelsRequest(), timeout_s, ())
        return served_models(response)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        given_s = self._timeout_s if timeout_s is None else timeout_s
        return Attempts(self.address, self._retry, self._draw, given_s, asyncio.get_running_loop().time())

    async def _unary(
        self,
        method: Callable[..., grpc.aio.UnaryUnaryCall[RequestT, ReplyT]],
        message: RequestT,
        timeout_s: float | None,
        metadata: tuple[tuple[str, str], ...],
    ) -> tuple[ReplyT, Metadata]:
        now_s, attempts = asyncio.get_running_loop().time, self._attempts(timeout_s)
        while True:
            call = method(message, timeout=attempts.left_s(now_s()), metadata=metadata)
            try:
                response = await call
                return response, await call.initial_metadata()
            except grpc.aio.AioRpcError as failed:
                delay_s = attempts.delay_s(_report(failed), now_s())
            except asyncio.CancelledError:
                if _task_is_cancelled():
                    raise
                raise attempts.error(_CLIENT_LEFT) from None
            await asyncio.sleep(delay_s)


class AsyncAnswer(Reading):
    """One answer: iterate it for its deltas; `result` is there afterwards. Iterating raises ClientError."""

    def __init__(self, start: Callable[[float], StreamCall], attempts: Attempts) -> None:
        """`start` begins a call that may take so many seconds."""
        super().__init__()
        self._now_s = asyncio.get_running_loop().time
        self._start = start
        self._attempts = attempts
        self._cancelled = asyncio.Event()
        self._call = start(attempts.left_s(self._now_s()))

    def cancel(self) -> None:
        """End the request. Whoever is reading gets AnswerCancelled."""
        self._cancelled.set()
        self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self.ended:
            delta = self.take(await self._reply())
            if delta is not None:
                return delta
            await self._hear_status()
        raise StopAsyncIteration

    async def _hear_status(self) -> None:
        """Of an answer that is complete: a call that is left before its status has come counts as cancelled at the gateway."""
        try:
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass  # the answer is whole all the same
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise

    async def _reply(self) -> inference_pb2.GenerateReply:
        while True:
            try:
                reply = await self._call.read()
                if not self.began:
                    self.hear(await self._call.initial_metadata())
            except grpc.aio.AioRpcError as failed:
                await self._again(_report(failed))
                continue
            except asyncio.CancelledError:
                if _task_is_cancelled():
                    raise
                raise self.cancelled_by_hand() from None
            if not isinstance(reply, inference_pb2.GenerateReply):
                raise self.broken_off()
            return reply

    async def _again(self, report: Report) -> None:
        """Wait and call once more. Raises ClientError where the failure is final."""
        if self.began:
            raise self._attempts.error(self.named(report))
        delay_s = self._attempts.delay_s(report, self._now_s())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._cancelled.wait()
        if self._cancelled.is_set():
            raise self.cancelled_by_hand()
        self._call = self._start(self._attempts.left_s(self._now_s()))


def _report(failed: grpc.aio.AioRpcError) -> Report:
    return report_of(failed.code(), failed.details(), failed.trailing_metadata())


def _task_is_cancelled() -> bool:
    """Of a CancelledError: gRPC also raises it of a call that `cancel` or a closed channel has ended."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
