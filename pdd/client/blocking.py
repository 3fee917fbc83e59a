"""The client for code without an event loop: the same names as in `aio`, and each call waits.

A shell as that is. Its answers may be cancelled from another thread; it starts none itself.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self, TypeAlias, TypeVar

import grpc

from pdd.client.answer import Delta, Metadata, Model, Reading, Result, served_models, whole_answer
from pdd.client.errors import Report, report_of
from pdd.client.request import DEFAULT_ADDRESS, Request, request_metadata
from pdd.client.retry import DEFAULT_TIMEOUT_S, Attempts, Retry
from pdd.rpc.channel import CLIENT_OPTIONS, KEEPALIVE_OPTIONS, MESSAGE_OPTIONS
from pdd.v1 import inference_pb2
from pdd.v1.inference_pb2_grpc import InferenceStub

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
StreamCall: TypeAlias = "grpc._CallIterator[inference_pb2.GenerateReply]"


def open_blocking_channel(address: str) -> grpc.Channel:
    """As `pdd.rpc.channel.open_channel`."""
    return grpc.insecure_channel(address, options=(*MESSAGE_OPTIONS, *KEEPALIVE_OPTIONS, *CLIENT_OPTIONS))


class Client:
    """Use it as `with`; leaving closes the channel, which ends the requests that still run. Threads may share it."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        open_channel: Callable[[str], grpc.Channel] = open_blocking_channel,
        draw: Callable[[], float] = random.random,  # noqa: TID251  # a client stands outside the mesh
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251  # and has no loop to ask
    ) -> None:
        """As AsyncClient; `clock` gives seconds."""
        self.address = address
        self._timeout_s = timeout_s
        self._retry = retry
        self._open_channel = open_channel
        self._draw = draw
        self._clock = clock

    def __enter__(self) -> Self:
        self._channel = self._open_channel(self.address)
        self._stub = InferenceStub(self._channel)
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()

    @contextmanager
    def generate(
        self, request: Request, *, timeout_s: float | None = None, request_id: str = "", traceparent: str = ""
    ) -> Iterator[Answer]:
        """As AsyncClient.generate."""
        message, metadata = request.to_proto(), request_metadata(request_id, traceparent)

        def start(left_s: float) -> StreamCall:
            return self._stub.Generate(message, timeout=left_s, metadata=metadata)

        answer = Answer(start, self._attempts(timeout_s), self._clock)
        try:
            yield answer
        finally:
            answer.cancel()

    def generate_once(
        self, request: Request, *, timeout_s: float | None = None, request_id: str = "", traceparent: str = ""
    ) -> Result:
        """The whole answer in one piece. Raises ClientError."""
        metadata = request_metadata(request_id, traceparent)
        response, initial = self._unary(self._stub.GenerateOnce, request.to_proto(), timeout_s, metadata)
        return whole_answer(response, initial)

    def list_models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Empty while the mesh lacks an instance. Raises ClientError."""
        response, _ = self._unary(self._stub.ListModels, inference_pb2.ListModelsRequest(), timeout_s, ())
        return served_models(response)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        given_s = self._timeout_s if timeout_s is None else timeout_s
        return Attempts(self.address, self._retry, self._draw, given_s, self._clock())

    def _unary(
        self,
        method: grpc.UnaryUnaryMultiCallable[RequestT, ReplyT],
        message: RequestT,
        timeout_s: float | None,
        metadata: tuple[tuple[str, str], ...],
    ) -> tuple[ReplyT, Metadata]:
        attempts = self._attempts(timeout_s)
        while True:
            try:
                response, call = method.with_call(message, timeout=attempts.left_s(self._clock()), metadata=metadata)
                return response, call.initial_metadata()
            except grpc.RpcError as failed:
                delay_s = attempts.delay_s(_report(failed), self._clock())
            threading.Event().wait(delay_s)


class Answer(Reading):
    """One answer: iterate it for its deltas; `result` is there afterwards. Iterating raises ClientError."""

    def __init__(self, start: Callable[[float], StreamCall], attempts: Attempts, clock: Callable[[], float]) -> None:
        """`start` begins a call that may take so many seconds."""
        super().__init__()
        self._clock = clock
        self._start = start
        self._attempts = attempts
        self._cancelled = threading.Event()
        self._call = start(attempts.left_s(clock()))

    def cancel(self) -> None:
        """End the request, from any thread. Whoever is reading gets AnswerCancelled."""
        self._cancelled.set()
        self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        while not self.ended:
            delta = self.take(self._reply())
            if delta is not None:
                return delta
            self._hear_status()
        raise StopIteration

    def _hear_status(self) -> None:
        """Of an answer that is complete: a call that is left before its status has come counts as cancelled at the gateway."""
        with suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def _reply(self) -> inference_pb2.GenerateReply:
        while True:
            try:
                reply = next(self._call)
                if not self.began:
                    self.hear(self._call.initial_metadata())
                return reply
            except StopIteration:
                raise self.broken_off() from None
            except grpc.RpcError as failed:
                self._again(_report(failed))

    def _again(self, report: Report) -> None:
        """Wait and call once more. Raises ClientError where the failure is final."""
        if self._cancelled.is_set():
            raise self.cancelled_by_hand()
        if self.began:
            raise self._attempts.error(self.named(report))
        if self._cancelled.wait(self._attempts.delay_s(report, self._clock())):
            raise self.cancelled_by_hand()
        self._call = self._start(self._attempts.left_s(self._clock()))
        if self._cancelled.is_set():  # while it was started: then it is not the one that was cancelled
            self._call.cancel()


def _report(failed: grpc.RpcError) -> Report:
    assert isinstance(failed, grpc.Call)  # as every error of a call is
    return report_of(failed.code(), failed.details(), failed.trailing_metadata())
