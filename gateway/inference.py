"""The gRPC Inference service: the public API beside HTTP, under the same rules.

Called by grpc.aio. Maps messages to a checked request and an answer's deltas to messages; a client that cancels, leaves or passes
its deadline cancels the handler, which leaves the answer and so releases the mesh. Status codes and metadata as inference.proto
states them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from gateway.answer import Answer, Answers
from gateway.clients import ClientLeft, label_or_new
from gateway.generation import MeshError, MeshErrorCode, Span, Timeline, Usage
from gateway.prompting import Ask, InvalidRequest, Options, Prompting, UnknownModel
from gateway.text import TextDelta, TextEnd
from pdd.sampling_proto import logprobs_to_proto
from pdd.telemetry import get_logger
from pdd.tracing.context import TRACEPARENT
from pdd.v1 import inference_pb2, inference_pb2_grpc

SERVICE = "pdd.v1.Inference"
REQUEST_ID_KEY = "x-request-id"
PLAN_KEY = "x-pdd-plan"
CODE_KEY = "x-pdd-code"
FIELD_KEY = "x-pdd-field"
RETRY_KEY = "grpc-retry-pushback-ms"  # gRPC's own name for it

Context = grpc.aio.ServicerContext[Any, Any]

log = get_logger(__name__)

_MESH_STATUS = {
    MeshErrorCode.NO_INSTANCE: grpc.StatusCode.UNAVAILABLE,
    MeshErrorCode.PEER_LOST: grpc.StatusCode.UNAVAILABLE,
    MeshErrorCode.KV_REFUSED: grpc.StatusCode.UNAVAILABLE,
    MeshErrorCode.ENGINE_FAILED: grpc.StatusCode.INTERNAL,
    MeshErrorCode.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MeshErrorCode.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class SlowClient(Exception):
    """The client did not read for as long as it may."""


class Inference(inference_pb2_grpc.InferenceServicer):
    def __init__(self, prompting: Prompting, answers: Answers, new_id: Callable[[], str], write_deadline_s: float = 30.0) -> None:
        """`write_deadline_s`: the time a client has to make room in a full stream."""
        self._prompting = prompting
        self._answers = answers
        self._new_id = new_id
        self._write_deadline_s = write_deadline_s

    # The stubs' types know handlers that yield; one that writes sees a cancel as CancelledError, wherever it waits.
    async def Generate(  # type: ignore[override]
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        async with self._call("Generate", context) as call:
            source, next_index = "", 0
            ask = self._ask(request, call.label, streaming=True)
            async with self._answers.open(ask, call.arrived_s, call.traceparent) as answer:
                await self._begin(context, call, answer)
                async for delta in answer:
                    source, next_index = delta.source, delta.first_index + len(delta.tokens)
                    await self._write(context, inference_pb2.GenerateReply(delta=_delta(delta)))
            if answer.end.text:
                last = inference_pb2.Delta(text=answer.end.text, first_index=next_index, source=source)
                await self._write(context, inference_pb2.GenerateReply(delta=last))
            await self._write(context, inference_pb2.GenerateReply(done=_done(answer.end)))

    async def GenerateOnce(self, request: inference_pb2.GenerateRequest, context: Context) -> inference_pb2.GenerateResponse:
        response = inference_pb2.GenerateResponse()
        async with self._call("GenerateOnce", context) as call:
            ask = self._ask(request, call.label, streaming=False)
            async with self._answers.open(ask, call.arrived_s, call.traceparent) as answer:
                await self._begin(context, call, answer)
                deltas = [delta async for delta in answer]
            response.text = "".join(delta.text for delta in deltas) + answer.end.text
            response.tokens.extend(token for delta in deltas for token in delta.tokens)
            response.logprobs.extend(logprobs_to_proto(found) for delta in deltas for found in delta.logprobs)
            response.done.CopyFrom(_done(answer.end))
        return response

    async def ListModels(self, request: inference_pb2.ListModelsRequest, context: Context) -> inference_pb2.ListModelsResponse:
        """Empty while the mesh lacks an instance, as /v1/models is."""
        if self._answers.generator.missing_roles():
            return inference_pb2.ListModelsResponse()
        model = inference_pb2.Model(id=self._prompting.card.name, context_tokens=self._prompting.context_tokens)
        return inference_pb2.ListModelsResponse(models=[model])

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[_Call]:
        """Measures a call, and ends it with a status where it fails."""
        route, now_s = f"{SERVICE}/{method}", asyncio.get_running_loop().time
        call = self._arrived(context, now_s())
        metrics = self._answers.metrics
        metrics.request_began(route)
        outcome = grpc.StatusCode.CANCELLED
        try:
            yield call
            outcome = grpc.StatusCode.OK
        except ClientLeft as error:
            log.info("the client went away", method=method, request=call.label, reason=str(error))
        except Exception as error:
            failure = _failure(error)
            outcome = failure.status
            if outcome in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE):
                cause = None if isinstance(error, MeshError) else error
                log.error("a call failed", method=method, request=call.label, reason=failure.message, exc_info=cause)
            await context.abort(outcome, failure.message, failure.metadata(call.label))
        finally:
            metrics.request_ended(route, outcome.name, now_s() - call.arrived_s)

    def _ask(self, request: inference_pb2.GenerateRequest, label: str, *, streaming: bool) -> Ask:
        if request.model:
            self._prompting.check_model(request.model)
        match request.WhichOneof("input"):
            case "prompt":
                prompt = self._prompting.text(request.prompt, "prompt")
            case "chat":
                self._prompting.check_pieces(len(request.chat.messages), "chat.messages")
                messages = [{"role": message.role, "content": message.content} for message in request.chat.messages]
                prompt = self._prompting.chat(messages, "chat.messages")
            case "tokens":
                prompt = self._prompting.ids(request.tokens.ids, "tokens.ids")
            case _:
                raise InvalidRequest("input", "set one of prompt, chat and tokens")
        expected = request.options.expected_tokens if request.options.HasField("expected_tokens") else None
        return self._prompting.ask(prompt, _options(request), label, streaming=streaming, expected_tokens=expected)

    def _arrived(self, context: Context, now_s: float) -> _Call:
        told = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        return _Call(label_or_new(told.get(REQUEST_ID_KEY, ""), self._new_id), told.get(TRACEPARENT, ""), now_s)

    async def _begin(self, context: Context, call: _Call, answer: Answer) -> None:
        """Tell the plan, while prefill computes."""
        await self._bounded(context.send_initial_metadata(((REQUEST_ID_KEY, call.label), (PLAN_KEY, answer.plan))))

    async def _write(self, context: Context, reply: inference_pb2.GenerateReply) -> None:
        await self._bounded(context.write(reply))

    async def _bounded(self, sending: Awaitable[None]) -> None:
        """Raises SlowClient and ClientLeft."""
        try:
            async with asyncio.timeout(self._write_deadline_s):
                await sending
        except TimeoutError:
            raise SlowClient(f"the client has read nothing for {self._write_deadline_s:g} s") from None
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            # The call is dead. A write that was waiting then fails with an internal error of gRPC's, and no cause.
            raise ClientLeft(repr(error)) from error


@dataclass(frozen=True, slots=True)
class _Call:
    label: str  # the client's x-request-id where it is fit to be logged and sent back, else a new one
    traceparent: str  # as the client sent it
    arrived_s: float  # the loop's time


@dataclass(frozen=True, slots=True)
class _Failure:
    status: grpc.StatusCode
    message: str
    code: str | None = None  # as over HTTP
    field: str | None = None  # what the client has to change
    retry_ms: str | None = None  # when it should ask again

    def metadata(self, label: str) -> tuple[tuple[str, str], ...]:
        pairs = ((REQUEST_ID_KEY, label), (CODE_KEY, self.code), (FIELD_KEY, self.field), (RETRY_KEY, self.retry_ms))
        return tuple((key, value) for key, value in pairs if value)


def _failure(error: Exception) -> _Failure:
    match error:
        case InvalidRequest():
            return _Failure(grpc.StatusCode.INVALID_ARGUMENT, f"{error.field}: {error}", error.code, error.field)
        case UnknownModel():
            return _Failure(grpc.StatusCode.NOT_FOUND, str(error), "model_not_found", "model")
        case MeshError():
            after_s = error.retry_after_s
            retry_ms = None if after_s is None else str(1000 * after_s)
            return _Failure(_MESH_STATUS[error.code], str(error), error.code.value, retry_ms=retry_ms)
        case SlowClient():
            return _Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
    message = "the gateway failed in a way it does not know; its log has the cause"
    return _Failure(grpc.StatusCode.INTERNAL, message, "internal_error")


def _options(request: inference_pb2.GenerateRequest) -> Options:
    """Both sides name the options alike; what the client did not set keeps its default."""
    given = {field.name: value for field, value in request.options.ListFields()}
    given.pop("expected_tokens", None)  # no option of sampling
    bias = tuple((entry.token, entry.bias) for entry in given.pop("logit_bias", ()))
    return Options(**given, logit_bias=bias, stop=tuple(request.stop))


def _delta(delta: TextDelta) -> inference_pb2.Delta:
    return inference_pb2.Delta(
        text=delta.text,
        first_index=delta.first_index,
        tokens=delta.tokens,
        source=delta.source,
        logprobs=[logprobs_to_proto(found) for found in delta.logprobs],
    )


def _done(end: TextEnd) -> inference_pb2.Done:
    return inference_pb2.Done(finish_reason=end.reason.value, usage=_usage(end.usage), timeline=_timeline(end.timeline))


def _usage(usage: Usage) -> inference_pb2.Usage:
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cached_tokens=usage.cached_tokens
    )


def _timeline(timeline: Timeline) -> inference_pb2.Timeline:
    return inference_pb2.Timeline(
        pipeline=timeline.pipeline,
        handoff=timeline.handoff,
        spans=[_span(span) for span in timeline.spans],
        switch_gap_us=_micros(timeline.switch_gap_s),
        eager_tokens=timeline.eager_tokens,
        main_computed_tokens=timeline.main_computed_tokens,
        wan_kv_bytes=timeline.wan_kv_bytes,
        user_gap_us=_micros(timeline.user_gap_s),
        scored_tokens=timeline.scored_tokens,
        agreed_tokens=timeline.agreed_tokens,
        main_cached_tokens=timeline.main_cached_tokens,
    )


def _span(span: Span) -> inference_pb2.Span:
    return inference_pb2.Span(
        name=span.name,
        instance=span.instance,
        start_us=_micros(span.start_s),
        end_us=_micros(span.end_s),
        tokens=span.tokens,
        bytes=span.bytes,
    )


def _micros(seconds: float) -> int:
    # A stage may be seen to begin before the request's arrival was noted, by a clock's last digit.
    return max(0, round(seconds * 1e6))
