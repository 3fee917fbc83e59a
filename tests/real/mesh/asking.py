"""Asks a mesh of the real model for greedy tokens, over gRPC, and gathers what is said of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pdd.v1 import inference_pb2, inference_pb2_grpc

BLOCK_TOKENS = 16
BLOCK_BYTES = 30 * 2 * 192 * 2 * BLOCK_TOKENS  # layers, K and V, KV heads × head size, f16


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: list[int]
    sources: list[str]
    text: str
    timeline: inference_pb2.Timeline
    usage: inference_pb2.Usage


async def ask(
    stub: inference_pb2_grpc.InferenceAsyncStub,
    prompt: list[int],
    count: int,
    on_tokens: Callable[[int], Awaitable[None]] | None = None,
) -> Answer:
    request = inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenInput(ids=prompt),
        options=inference_pb2.GenerateOptions(max_tokens=count, temperature=0, ignore_eos=True),
    )
    tokens: list[int] = []
    sources: list[str] = []
    text = ""
    done: inference_pb2.Done | None = None
    async for reply in stub.Generate(request, timeout=180):
        if reply.HasField("delta"):
            assert reply.delta.first_index == len(tokens) or not reply.delta.tokens
            tokens += reply.delta.tokens
            sources += [reply.delta.source] * len(reply.delta.tokens)
            text += reply.delta.text
            if on_tokens is not None:
                await on_tokens(len(tokens))
        else:
            done = reply.done
    assert done is not None
    return Answer(tokens, sources, text, done.timeline, done.usage)
