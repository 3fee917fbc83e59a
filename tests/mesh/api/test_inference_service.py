"""The gRPC Inference service over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc.aio
import pytest

from gateway.generation import GenerationSpec, MeshError, MeshErrorCode, Span, Timeline
from pdd.rpc.channel import open_channel
from pdd.tracing.context import TraceContext
from pdd.tracing.tracer import Tracer
from pdd.v1 import inference_pb2, inference_pb2_grpc
from pdd.v1.inference_pb2 import GenerateOptions as Options
from pdd.v1.inference_pb2 import GenerateRequest as Request
from pdd.v1.sampling_pb2 import LogitBias
from tests.eventually import eventually
from tests.mesh.api.conftest import CARD, CONTEXT, Gateway, Start, stands_still
from tests.unit.gateway_api.scripted import Hold, Step, saying, steps

TEXT = " the river ran to the sea."
IDS = [*CARD.encode(TEXT), *CARD.eos_ids]
DEADLINE_S = 20.0


def chat_of(role: str) -> inference_pb2.ChatInput:
    return inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role=role, content="hi")])


@pytest.fixture
async def stub(gateway: Gateway) -> AsyncIterator[inference_pb2_grpc.InferenceAsyncStub]:
    async with open_channel(gateway.grpc) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)


async def generate(stub: inference_pb2_grpc.InferenceAsyncStub, request: Request) -> list[inference_pb2.GenerateReply]:
    return [reply async for reply in stub.Generate(request, timeout=DEADLINE_S)]


async def read(call: Any) -> None:
    """To its end, streamed or not. Raises AioRpcError."""
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        await call
    else:
        assert [reply async for reply in call]


async def test_an_answer_streams_as_deltas_and_done(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    *deltas, last = await generate(stub, Request(prompt=" the sea"))
    assert "".join(reply.delta.text for reply in deltas) == TEXT
    assert [token for reply in deltas for token in reply.delta.tokens] == IDS
    assert [reply.delta.first_index for reply in deltas] == list(range(len(IDS)))
    assert {reply.delta.source for reply in deltas} == {"relay-0", "main-0"}
    assert last.done.finish_reason == "stop"
    assert (last.done.usage.prompt_tokens, last.done.usage.completion_tokens) == (2, len(IDS))


async def test_the_same_in_one_piece_with_logprobs(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    request = Request(tokens=inference_pb2.TokenInput(ids=[1, 2, 3]))
    request.options.top_logprobs = 2
    answer = await stub.GenerateOnce(request, timeout=DEADLINE_S)
    assert (answer.text, list(answer.tokens)) == (TEXT, IDS)
    assert len(answer.logprobs) == len(IDS)
    assert list(answer.logprobs[0].top_tokens) == [IDS[0], IDS[0] + 1]
    assert answer.done.usage.prompt_tokens == 3


async def test_the_plan_is_told_before_the_first_token(start: Start) -> None:
    prefill = asyncio.Event()
    async with start(lambda spec: [Hold(prefill), *steps(spec, IDS)]) as gateway, open_channel(gateway.grpc) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(Request(prompt="hi"), timeout=DEADLINE_S, metadata=(("x-request-id", "mine"),))
        told = dict(await call.initial_metadata())
        assert not prefill.is_set()
        assert (told["x-pdd-plan"], told["x-request-id"]) == ("pipeline=direct; reason=scripted", "mine")
        prefill.set()
        await read(call)


async def test_the_plan_is_told_of_an_answer_in_one_piece_too(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    call = stub.GenerateOnce(Request(prompt="hi"), timeout=DEADLINE_S)
    assert dict(await call.initial_metadata())["x-pdd-plan"] == "pipeline=direct; reason=scripted"


@pytest.mark.parametrize("given", ["", "a b", "a" * 129])
async def test_a_label_that_is_not_fit_to_be_logged_is_replaced(
    gateway: Gateway, stub: inference_pb2_grpc.InferenceAsyncStub, given: str
) -> None:
    call = stub.GenerateOnce(Request(prompt="hi"), timeout=DEADLINE_S, metadata=(("x-request-id", given),))
    assert dict(await call.initial_metadata())["x-request-id"] == "n1"
    assert gateway.generator.specs[0].label == "n1"


async def test_a_client_may_say_how_long_its_answer_will_be(
    gateway: Gateway, stub: inference_pb2_grpc.InferenceAsyncStub
) -> None:
    for options in (Options(), Options(expected_tokens=50)):
        await generate(stub, Request(prompt="hi", options=options))
    assert [spec.expected_tokens for spec in gateway.generator.specs] == [None, 50]


async def test_a_request_belongs_to_its_clients_trace(start: Start) -> None:
    trace_id, metadata = 0xAB, (("traceparent", f"00-{0xAB:032x}-{0xCD:016x}-01"),)
    tracer = Tracer(lambda _bits: 7, lambda _spans: None)
    async with start(saying(CARD, TEXT), tracer=tracer) as gateway, open_channel(gateway.grpc) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        for method in (stub.Generate, stub.GenerateOnce):
            await read(method(Request(prompt="hi"), timeout=DEADLINE_S, metadata=metadata))
        contexts = [TraceContext.from_bytes(spec.trace) for spec in gateway.generator.specs]
    assert [context and context.trace_id for context in contexts] == [trace_id, trace_id]


async def test_chat_input_and_options_reach_the_mesh(gateway: Gateway, stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    request = Request(model="pdd-sim", chat=chat_of("user"))
    request.options.MergeFrom(
        Options(max_tokens=4, temperature=0.0, top_p=0.9, seed=5, ignore_eos=True, logit_bias=[LogitBias(token=3, bias=0.1)])
    )
    await stub.GenerateOnce(request, timeout=DEADLINE_S, metadata=(("x-request-id", "mine"),))
    (spec,) = gateway.generator.specs
    assert list(spec.prompt) == CARD.encode(CARD.render_chat([{"role": "user", "content": "hi"}]))
    assert spec.label == "mine"
    params = spec.sampling
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (4, 0.0, 0.9, 5)
    assert (params.ignore_eos, params.logit_bias) == (True, ((3, 0.1),))


async def test_the_mesh_knows_whether_someone_watches_the_tokens_come(
    gateway: Gateway, stub: inference_pb2_grpc.InferenceAsyncStub
) -> None:
    await generate(stub, Request(prompt="hi"))
    await stub.GenerateOnce(Request(prompt="hi"), timeout=DEADLINE_S)
    async with gateway.openai() as client:
        for stream in (True, False):
            await client.completions.create(model="pdd-sim", prompt="hi", stream=stream)
    assert [spec.streaming for spec in gateway.generator.specs] == [True, False, True, False]


async def test_a_stop_string_over_the_handoff_does_not_leak(
    gateway: Gateway, stub: inference_pb2_grpc.InferenceAsyncStub
) -> None:
    half = CARD.tokenizer.decode(IDS[: len(IDS) // 2])
    stop = TEXT[len(half) - 3 : len(half) + 3]
    *deltas, last = await generate(stub, Request(prompt="hi", stop=[stop]))
    assert "".join(reply.delta.text for reply in deltas) == TEXT.partition(stop)[0]
    assert (last.done.finish_reason, last.done.usage.completion_tokens) == ("stop", len(IDS) // 2 + 1)
    assert gateway.generator.stopped == 1


async def test_what_was_kept_back_comes_before_done(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    *deltas, _ = await generate(stub, Request(prompt="hi", stop=[" sea.!"]))
    assert "".join(reply.delta.text for reply in deltas) == TEXT
    assert (deltas[-1].delta.text, deltas[-1].delta.first_index, list(deltas[-1].delta.tokens)) == (" sea.", len(IDS), [])


async def test_done_carries_the_timeline(start: Start) -> None:
    spans = (Span("extend", "main-0", 0.25, 0.5, 8, 0), Span("transfer.main", "main-0", -1e-9, 0.1, 0, 4096))
    timeline = Timeline("relay", "catch_up", spans, 0.04, 10, 17, 4096, 0.02, 9, 8, 32)
    async with start(saying(CARD, TEXT, timeline=timeline)) as gateway, open_channel(gateway.grpc) as channel:
        answer = await inference_pb2_grpc.InferenceStub(channel).GenerateOnce(Request(prompt="hi"), timeout=DEADLINE_S)
    told = answer.done.timeline
    assert (told.pipeline, told.handoff, told.switch_gap_us, told.eager_tokens) == ("relay", "catch_up", 40_000, 10)
    assert (told.main_computed_tokens, told.wan_kv_bytes) == (17, 4096)
    assert (told.user_gap_us, told.scored_tokens, told.agreed_tokens, told.main_cached_tokens) == (20_000, 9, 8, 32)
    assert [(span.name, span.start_us, span.end_us, span.tokens, span.bytes) for span in told.spans] == [
        ("extend", 250_000, 500_000, 8, 0),
        ("transfer.main", 0, 100_000, 0, 4096),
    ]


@pytest.mark.parametrize(("count", "characters"), [(50_000, 1), (1, 90_000)])
async def test_a_conversation_far_over_the_context_is_refused_unread(
    stub: inference_pb2_grpc.InferenceAsyncStub, unread: None, count: int, characters: int
) -> None:
    message = inference_pb2.ChatMessage(role="user", content="a" * characters)
    request = Request(chat=inference_pb2.ChatInput(messages=[message] * count))
    error = await failure(stub.GenerateOnce(request, timeout=DEADLINE_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("chat.messages: ")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(), "input"),
        (Request(prompt=""), "prompt"),
        (Request(prompt=" the" * CONTEXT), "prompt"),
        (Request(chat=inference_pb2.ChatInput()), "chat.messages"),
        (Request(chat=chat_of("robot")), "chat.messages[0].role"),
        (Request(tokens=inference_pb2.TokenInput(ids=[10**9])), "tokens.ids[0]"),
        (Request(prompt="hi", stop=["x"] * 5), "stop"),
        (Request(prompt="hi", options=Options(max_tokens=0)), "max_tokens"),
        (Request(prompt="hi", options=Options(max_tokens=CONTEXT)), "max_tokens"),
        (Request(prompt="hi", options=Options(expected_tokens=0)), "expected_tokens"),
        (Request(prompt="hi", options=Options(temperature=2.5)), "temperature"),
        (Request(prompt="hi", options=Options(top_p=float("nan"))), "top_p"),
        (Request(prompt="hi", options=Options(top_logprobs=21)), "top_logprobs"),
        (Request(prompt="hi", options=Options(logit_bias=[LogitBias(token=1), LogitBias(token=1)])), "logit_bias"),
    ],
)
async def test_a_wrong_field_is_an_invalid_argument_and_named(
    stub: inference_pb2_grpc.InferenceAsyncStub, request_: Request, field: str
) -> None:
    for call in (generate(stub, request_), stub.GenerateOnce(request_, timeout=DEADLINE_S)):
        error = await failure(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith(f"{field}: ")
        assert trailing(error)["x-pdd-field"] == field
        assert trailing(error)["x-request-id"].startswith("n")


async def test_a_prompt_that_is_too_long_has_a_code_as_over_http(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    error = await failure(stub.GenerateOnce(Request(prompt=" the" * CONTEXT), timeout=DEADLINE_S))
    assert trailing(error)["x-pdd-code"] == "context_length_exceeded"


def trailing(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {key: str(value) for key, value in error.trailing_metadata() or ()}


async def counted(gateway: Gateway, method: str, status: str) -> None:
    """Until the one call is over; its client may know before the server has counted it."""
    route = f"pdd.v1.Inference/{method}"
    await eventually(lambda: gateway.count("pdd_requests_total", route=route, status=status) == 1)
    assert gateway.count("pdd_requests_running", route=route) == 0


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_another_model_is_not_found(stub: inference_pb2_grpc.InferenceAsyncStub) -> None:
    error = await failure(generate(stub, Request(model="gpt-5", prompt="hi")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert trailing(error)["x-pdd-code"] == "model_not_found"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (MeshErrorCode.NO_INSTANCE, grpc.StatusCode.UNAVAILABLE),
        (MeshErrorCode.PEER_LOST, grpc.StatusCode.UNAVAILABLE),
        (MeshErrorCode.KV_REFUSED, grpc.StatusCode.UNAVAILABLE),
        (MeshErrorCode.ENGINE_FAILED, grpc.StatusCode.INTERNAL),
        (MeshErrorCode.OVERLOADED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (MeshErrorCode.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_an_error_of_the_mesh_has_its_status_after_what_was_said(
    start: Start, code: MeshErrorCode, status: grpc.StatusCode
) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:2], MeshError(code, "main-0: so")]) as gateway:
        async with open_channel(gateway.grpc) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            call = stub.Generate(Request(prompt="hi"), timeout=DEADLINE_S)
            for text in (" the", " river"):
                reply = await call.read()
                assert isinstance(reply, inference_pb2.GenerateReply)
                assert reply.delta.text == text
            error = await failure(call.read())
        assert (error.code(), error.details()) == (status, "main-0: so")
        assert trailing(error)["x-pdd-code"] == code.value
        after_ms = {MeshErrorCode.OVERLOADED: "1000", MeshErrorCode.NO_INSTANCE: "2000"}  # as over HTTP
        assert trailing(error).get("grpc-retry-pushback-ms") == after_ms.get(code)
        await counted(gateway, "Generate", status.name)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("deadline", [True, False])
async def test_a_cancel_or_deadline_of_the_client_leaves_the_generation(start: Start, once: bool, deadline: bool) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:2], Hold(asyncio.Event())]) as gateway:
        async with open_channel(gateway.grpc) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            method: Any = stub.GenerateOnce if once else stub.Generate
            call = method(Request(prompt="hi"), timeout=0.5 if deadline else DEADLINE_S)
            await gateway.generator.entered.wait()
            if not deadline:
                call.cancel()
            async with asyncio.timeout(10):
                await gateway.generator.left.wait()
        await counted(gateway, "GenerateOnce" if once else "Generate", "CANCELLED")


def endless(spec: GenerationSpec) -> Iterable[Step]:
    while True:
        yield steps(spec, IDS * 20, bundle=1000)[1]


async def test_a_client_that_does_not_read_is_ended(start: Start) -> None:
    async with start(endless, write_deadline_s=0.2) as gateway, open_channel(gateway.grpc) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(Request(prompt="hi"), timeout=DEADLINE_S)
        async with asyncio.timeout(10):
            await gateway.generator.left.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_models_are_listed_while_the_mesh_serves(start: Start) -> None:
    async with start(saying(CARD, TEXT), missing=["main"]) as gateway, open_channel(gateway.grpc) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        ask = inference_pb2.ListModelsRequest()
        assert list((await stub.ListModels(ask, timeout=DEADLINE_S)).models) == []
        gateway.generator.missing = ()
        (model,) = (await stub.ListModels(ask, timeout=DEADLINE_S)).models
        assert (model.id, model.context_tokens) == ("pdd-sim", CONTEXT)


async def test_a_client_that_leaves_while_a_write_waits_for_it_leaves_the_generation(start: Start) -> None:
    async with start(endless) as gateway:
        async with open_channel(gateway.grpc) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            call = stub.Generate(Request(prompt="hi"), timeout=DEADLINE_S)
            await call.read()
            await stands_still(lambda: gateway.count("pdd_output_tokens_total", source="main-0"))
            call.cancel()
            async with asyncio.timeout(10):
                await gateway.generator.left.wait()
        await counted(gateway, "Generate", "CANCELLED")
