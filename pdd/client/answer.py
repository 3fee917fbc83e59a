"""What a gateway answers: its messages as plain data, and one streamed answer while it is read.

Made by both clients. Pure: no calls, no waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import grpc

from pdd.client.errors import REQUEST_ID_KEY, AnswerCancelled, Report, RequestFailed
from pdd.sampling import TokenLogprobs
from pdd.sampling_proto import logprobs_from_proto
from pdd.v1 import inference_pb2

PLAN_KEY = "x-pdd-plan"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens [first_index, first_index + len(tokens)) of the answer, all made by one instance."""

    text: str  # may be empty while a character or a possible stop string is incomplete
    first_index: int
    tokens: tuple[int, ...]
    source: str  # instance id
    logprobs: tuple[TokenLogprobs, ...]  # one per token where asked for


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt: those that prefill took from cache


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of the request; times in seconds from its arrival at the gateway."""

    name: str  # prefill, transfer.relay, transfer.main, relay, extend, main
    instance: str
    start_s: float
    end_s: float
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to the request, as the gateway saw it; each figure as inference.proto explains it."""

    pipeline: str  # "relay", "direct" or "singular"
    handoff: str  # "one_shot", "catch_up" or "" where there was none
    spans: tuple[Span, ...]
    switch_gap_s: float
    user_gap_s: float
    eager_tokens: int
    main_computed_tokens: int
    main_cached_tokens: int
    wan_kv_bytes: int
    scored_tokens: int
    agreed_tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one per token where asked for
    finish_reason: str  # "stop" or "length"
    usage: Usage
    timeline: Timeline
    plan: str  # how the mesh served it, and why: `key=value` pairs between "; "
    request_id: str


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    context_tokens: int  # prompt and output together


class Reading:
    """One streamed answer as far as it was read. `plan` and `request_id` are there from the first delta on."""

    def __init__(self) -> None:
        self.plan = ""
        self.request_id = ""
        self._deltas: list[Delta] = []
        self._result: Result | None = None

    @property
    def began(self) -> bool:
        """A token was delivered."""
        return bool(self._deltas)

    @property
    def ended(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> Result:
        """Raises RuntimeError while there are deltas to read."""
        if self._result is None:
            raise RuntimeError("the answer has not ended: read its deltas first")
        return self._result

    def hear(self, initial: Metadata) -> None:
        """Take the call's initial metadata."""
        self.plan, self.request_id = _heard(initial)

    def take(self, reply: inference_pb2.GenerateReply) -> Delta | None:
        """The delta that it is; None where it is the end."""
        if reply.HasField("done"):
            text = "".join(delta.text for delta in self._deltas)
            tokens = tuple(token for delta in self._deltas for token in delta.tokens)
            logprobs = tuple(found for delta in self._deltas for found in delta.logprobs)
            self._result = _result(text, tokens, logprobs, reply.done, (self.plan, self.request_id))
            return None
        delta = _delta(reply.delta)
        self._deltas.append(delta)
        return delta

    def named(self, report: Report) -> Report:
        """With the request's id, where the gateway could not tell it at the end."""
        return replace(report, request_id=report.request_id or self.request_id)

    def broken_off(self) -> RequestFailed:
        """For a stream that just ends: never to be taken for a finished answer."""
        message = "the gateway ended the stream without a result; its log has the cause"
        return RequestFailed(message, Report(request_id=self.request_id))

    def cancelled_by_hand(self) -> AnswerCancelled:
        return AnswerCancelled("the answer was cancelled", Report(grpc.StatusCode.CANCELLED, request_id=self.request_id))


def whole_answer(response: inference_pb2.GenerateResponse, initial: Metadata) -> Result:
    logprobs = tuple(logprobs_from_proto(found) for found in response.logprobs)
    return _result(response.text, tuple(response.tokens), logprobs, response.done, _heard(initial))


def served_models(response: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(Model(model.id, model.context_tokens) for model in response.models)


def _heard(initial: Metadata) -> tuple[str, str]:
    told = dict(initial)
    return str(told.get(PLAN_KEY, "")), str(told.get(REQUEST_ID_KEY, ""))


def _delta(message: inference_pb2.Delta) -> Delta:
    logprobs = tuple(logprobs_from_proto(found) for found in message.logprobs)
    return Delta(message.text, message.first_index, tuple(message.tokens), message.source, logprobs)


def _result(
    text: str, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...], done: inference_pb2.Done, heard: tuple[str, str]
) -> Result:
    usage = Usage(done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.cached_tokens)
    return Result(text, tokens, logprobs, done.finish_reason, usage, _timeline(done.timeline), *heard)


def _timeline(message: inference_pb2.Timeline) -> Timeline:
    return Timeline(
        pipeline=message.pipeline,
        handoff=message.handoff,
        spans=tuple(_span(span) for span in message.spans),
        switch_gap_s=message.switch_gap_us / 1e6,
        user_gap_s=message.user_gap_us / 1e6,
        eager_tokens=message.eager_tokens,
        main_computed_tokens=message.main_computed_tokens,
        main_cached_tokens=message.main_cached_tokens,
        wan_kv_bytes=message.wan_kv_bytes,
        scored_tokens=message.scored_tokens,
        agreed_tokens=message.agreed_tokens,
    )


def _span(message: inference_pb2.Span) -> Span:
    return Span(message.name, message.instance, message.start_us / 1e6, message.end_us / 1e6, message.tokens, message.bytes)
