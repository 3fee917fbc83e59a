"""The gRPC Inference service: the public API beside HTTP, under the same rules.

Called by grpc.aio. Maps messages to a checked request and an answer's deltas to messages; a client that cancels, leaves or passes
its deadline cancels the handler, which leaves the answer and so releases the mesh. Status codes as inference.proto states them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from gateway.answer import Answers
from gateway.generation import MeshError, MeshErrorCode, Span, Timeline, Usage
from gateway.prompting import Ask, InvalidRequest, Options, Prompting, UnknownModel
from gateway.text import TextDelta, TextEnd
from pdd.sampling_proto import logprobs_to_proto
from pdd.telemetry import get_logger
from pdd.v1 import inference_pb2, inference_pb2_grpc

SERVICE = "pdd.v1.Inference"
REQUEST_ID_KEY = "x-request-id"

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


class ClientLeft(Exception):
    """The call is dead. A write that was waiting then says so with an internal error of gRPC's, and no cause."""


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
        async with self._call("Generate", context) as arrived_s:
            source, next_index = "", 0
            async with self._answers.open(self._ask(request, context, streaming=True), arrived_s) as answer:
                async for delta in answer:
                    source, next_index = delta.source, delta.first_index + len(delta.tokens)
                    await self._write(context, inference_pb2.GenerateReply(delta=_delta(delta)))
            if answer.end.text:
                last = inference_pb2.Delta(text=answer.end.text, first_index=next_index, source=source)
                await self._write(context, inference_pb2.GenerateReply(delta=last))
            await self._write(context, inference_pb2.GenerateReply(done=_done(answer.end)))

    async def GenerateOnce(self, request: inference_pb2.GenerateRequest, context: Context) -> inference_pb2.GenerateResponse:
        response = inference_pb2.GenerateResponse()
        async with self._call("GenerateOnce", context) as arrived_s:
            async with self._answers.open(self._ask(request, context, streaming=False), arrived_s) as answer:
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
    async def _call(self, method: str, context: Context) -> AsyncIterator[float]:
        """Measures a call, gives its arrival on the loop's clock, and ends it with a status where it fails."""
        route, now_s = f"{SERVICE}/{method}", asyncio.get_running_loop().time
        arrived_s = now_s()
        metrics = self._answers.metrics
        metrics.request_began(route)
        outcome = grpc.StatusCode.CANCELLED
        try:
            yield arrived_s
            outcome = grpc.StatusCode.OK
        except ClientLeft as error:
            log.info("the client went away", method=method, reason=str(error))
        except Exception as error:
            outcome, message = _status(error)
            if outcome in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE):
                log.error(
                    "a call failed", method=method, reason=message, exc_info=None if isinstance(error, MeshError) else error
                )
            await context.abort(outcome, message)
        finally:
            metrics.request_ended(route, outcome.name, now_s() - arrived_s)

    def _ask(self, request: inference_pb2.GenerateRequest, context: Context, *, streaming: bool) -> Ask:
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
        return self._prompting.ask(prompt, _options(request), self._label(context), streaming=streaming)

    def _label(self, context: Context) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == REQUEST_ID_KEY and isinstance(value, str) and value:
                return value[:128]
        return self._new_id()

    async def _write(self, context: Context, reply: inference_pb2.GenerateReply) -> None:
        try:
            async with asyncio.timeout(self._write_deadline_s):
                await context.write(reply)
        except TimeoutError:
            raise SlowClient(f"the client has read nothing for {self._write_deadline_s:g} s") from None
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ClientLeft(repr(error)) from error


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    match error:
        case InvalidRequest():
            return grpc.StatusCode.INVALID_ARGUMENT, f"{error.field}: {error}"
        case UnknownModel():
            return grpc.StatusCode.NOT_FOUND, str(error)
        case MeshError():
            return _MESH_STATUS[error.code], str(error)
        case SlowClient():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    return grpc.StatusCode.INTERNAL, "the gateway failed in a way it does not know; its log has the cause"


def _options(request: inference_pb2.GenerateRequest) -> Options:
    """Both sides name the options alike; what the client did not set keeps its default."""
    given = {field.name: value for field, value in request.options.ListFields()}
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
