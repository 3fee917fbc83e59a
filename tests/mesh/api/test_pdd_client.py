"""`pdd.client` against the gateway: both clients, each test twice."""

from __future__ import annotations

import asyncio
import math

import pytest

from gateway.generation import MeshError, MeshErrorCode, Span, Timeline
from pdd.client import (
    AnswerCancelled,
    AsyncClient,
    Chat,
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    Message,
    Model,
    NoSuchModel,
    Overloaded,
    Request,
    RequestFailed,
    Retry,
    Text,
    TokenIds,
    Unavailable,
)
from tests.eventually import eventually
from tests.mesh.api.asking import AsAsyncio, Asking, AsThreads
from tests.mesh.api.conftest import CARD, CONTEXT, Gateway, Start
from tests.unit.gateway_api.scripted import Hold, saying, steps

TEXT = " the river ran to the sea."
IDS = (*CARD.encode(TEXT), *CARD.eos_ids)
SEA = Request(Text(" the sea"))
ONCE = {"retry": Retry(attempts=1)}
PLAN = "pipeline=direct; reason=scripted"


@pytest.fixture(params=[AsAsyncio(), AsThreads()], ids=["asyncio", "threads"])
def asking(request: pytest.FixtureRequest) -> Asking:
    found: Asking = request.param
    return found


async def test_an_answer_comes_as_deltas_with_its_result_behind_them(gateway: Gateway, asking: Asking) -> None:
    deltas, result = await asking.stream(gateway.grpc, SEA, {})
    assert "".join(delta.text for delta in deltas) == result.text == TEXT
    assert tuple(token for delta in deltas for token in delta.tokens) == result.tokens == IDS
    assert [delta.first_index for delta in deltas] == list(range(len(IDS)))
    assert [delta.source for delta in (deltas[0], deltas[-1])] == ["relay-0", "main-0"]
    assert (result.finish_reason, result.usage.prompt_tokens, result.usage.completion_tokens) == ("stop", 2, len(IDS))
    assert (result.plan, result.request_id) == (PLAN, "n1")


async def test_in_one_piece_it_is_the_same_result(gateway: Gateway, asking: Asking) -> None:
    request = Request(Text(" the sea"), top_logprobs=2)
    deltas, streamed = await asking.stream(gateway.grpc, request, {}, request_id="mine")
    assert await asking.once(gateway.grpc, request, {}, request_id="mine") == streamed
    assert streamed.request_id == "mine"
    assert streamed.logprobs == tuple(found for delta in deltas for found in delta.logprobs)
    assert streamed.logprobs[0].top[0] == (IDS[0], -0.5)


async def test_the_timeline_is_told_in_seconds(start: Start, asking: Asking) -> None:
    timeline = Timeline("singular", "catch_up", (Span("extend", "main-0", 0.25, 0.5, 8, 9),), 0.04, 10, 17, 4096, 0.02, 9, 8, 32)
    async with start(saying(CARD, TEXT, timeline=timeline)) as gateway:
        told = (await asking.once(gateway.grpc, SEA, {})).timeline
    assert (told.pipeline, told.handoff, told.switch_gap_s, told.user_gap_s) == ("singular", "catch_up", 0.04, 0.02)
    assert (told.eager_tokens, told.main_computed_tokens, told.wan_kv_bytes) == (10, 17, 4096)
    assert (told.scored_tokens, told.agreed_tokens, told.main_cached_tokens) == (9, 8, 32)
    (span,) = told.spans
    assert (span.name, span.instance, span.start_s, span.end_s, span.tokens, span.bytes) == ("extend", "main-0", 0.25, 0.5, 8, 9)


async def test_what_is_asked_reaches_the_mesh(gateway: Gateway, asking: Asking) -> None:
    messages = (Message("system", "Be brief."), Message("user", "hi"))
    request = Request(
        Chat(messages),
        "pdd-sim",
        max_tokens=4,
        temperature=0.0,
        seed=5,
        logit_bias=((3, 1.5),),
        ignore_eos=True,
        expected_tokens=7,
    )
    await asking.stream(gateway.grpc, request, {})
    await asking.once(gateway.grpc, Request(TokenIds((1, 2, 3)), stop=(" ran",)), {})
    chat, ids = gateway.generator.specs
    assert list(chat.prompt) == CARD.encode(
        CARD.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    )
    assert (chat.sampling.max_tokens, chat.sampling.temperature, chat.sampling.seed) == (4, 0.0, 5)
    assert (chat.sampling.ignore_eos, chat.sampling.logit_bias, chat.expected_tokens) == (True, ((3, 1.5),), 7)
    assert (ids.prompt, ids.expected_tokens) == ((1, 2, 3), None)
    assert gateway.generator.stopped == 1


async def test_models_are_those_that_are_served(start: Start, asking: Asking) -> None:
    async with start(saying(CARD, TEXT), missing=["main"]) as gateway:
        assert await asking.models(gateway.grpc) == ()
        gateway.generator.missing = ()
        assert await asking.models(gateway.grpc) == (Model("pdd-sim", CONTEXT),)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(Text("")), "prompt"),
        (Request(Chat((Message("robot", "hi"),))), "chat.messages[0].role"),
        (Request(Text("hi"), max_tokens=CONTEXT), "max_tokens"),
        (Request(Text("hi"), temperature=2.5), "temperature"),
        (Request(Text("hi"), expected_tokens=0), "expected_tokens"),
    ],
)
async def test_a_wrong_request_names_its_field(gateway: Gateway, asking: Asking, request_: Request, field: str) -> None:
    for ask in (asking.stream, asking.once):
        with pytest.raises(InvalidRequest) as caught:
            await ask(gateway.grpc, request_, {}, request_id="mine")
        assert (caught.value.field, caught.value.request_id) == (field, "mine")
        assert str(caught.value).startswith(f"{field}: ")


async def test_another_model_is_none_and_the_error_says_where_to_look(gateway: Gateway, asking: Asking) -> None:
    with pytest.raises(NoSuchModel, match=r"'pdd-sim' does.*list_models\(\)"):
        await asking.stream(gateway.grpc, Request(Text("hi"), "gpt-5"), {})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (MeshErrorCode.NO_INSTANCE, Unavailable),
        (MeshErrorCode.PEER_LOST, Unavailable),
        (MeshErrorCode.KV_REFUSED, Unavailable),
        (MeshErrorCode.ENGINE_FAILED, RequestFailed),
        (MeshErrorCode.OVERLOADED, Overloaded),
        (MeshErrorCode.DEADLINE, DeadlineExceeded),
    ],
)
async def test_each_error_of_the_mesh_is_of_its_kind(
    start: Start, asking: Asking, code: MeshErrorCode, kind: type[ClientError]
) -> None:
    async with start(lambda _spec: [MeshError(code, "main-0: so")]) as gateway:
        for ask in (asking.stream, asking.once):
            with pytest.raises(kind, match="main-0: so") as caught:
                await ask(gateway.grpc, SEA, ONCE)
            assert type(caught.value) is kind
            assert (caught.value.report.code, caught.value.request_id[:1]) == (code.value, "n")


async def test_a_request_that_failed_before_its_first_token_is_asked_again(start: Start, asking: Asking) -> None:
    troubles = [MeshError(code, "so") for code in (MeshErrorCode.KV_REFUSED, MeshErrorCode.PEER_LOST)]
    async with start(lambda spec: [troubles.pop()] if troubles else steps(spec, IDS)) as gateway:
        _, result = await asking.stream(gateway.grpc, SEA, {"draw": lambda: 0.0})
        assert (result.text, len(gateway.generator.specs)) == (TEXT, 3)
        troubles.append(MeshError(MeshErrorCode.PEER_LOST, "so"))
        assert (await asking.once(gateway.grpc, SEA, {"draw": lambda: 0.0})).text == TEXT


async def test_the_gateways_wish_for_a_pause_reaches_the_client(start: Start, asking: Asking) -> None:
    wishes = {MeshErrorCode.OVERLOADED: 1.0, MeshErrorCode.NO_INSTANCE: 2.0, MeshErrorCode.PEER_LOST: None}
    for code, wish_s in wishes.items():
        async with start(lambda _spec, code=code: [MeshError(code, "so")]) as gateway:
            for ask in (asking.stream, asking.once):
                with pytest.raises(ClientError) as caught:
                    await ask(gateway.grpc, SEA, ONCE)
                assert caught.value.report.retry_after_s == wish_s


async def test_it_is_asked_only_so_often(start: Start, asking: Asking) -> None:
    async with start(lambda _spec: [MeshError(MeshErrorCode.PEER_LOST, "so")]) as gateway:
        for ask in (asking.stream, asking.once):
            gateway.generator.specs.clear()
            with pytest.raises(Unavailable):
                await ask(gateway.grpc, SEA, {"retry": Retry(attempts=3), "draw": lambda: 0.0})
            assert len(gateway.generator.specs) == 3


async def test_after_a_token_nothing_is_asked_again(start: Start, asking: Asking) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:1], MeshError(MeshErrorCode.PEER_LOST, "so")]) as gateway:
        with pytest.raises(Unavailable) as caught:
            await asking.stream(gateway.grpc, SEA, {"draw": lambda: 0.0})
        assert (caught.value.request_id, len(gateway.generator.specs)) == ("n1", 1)


@pytest.mark.parametrize("code", [MeshErrorCode.ENGINE_FAILED, MeshErrorCode.DEADLINE])
async def test_what_another_attempt_would_not_mend_is_not_asked_again(start: Start, asking: Asking, code: MeshErrorCode) -> None:
    async with start(lambda _spec: [MeshError(code, "so")]) as gateway:
        with pytest.raises(ClientError):
            await asking.stream(gateway.grpc, SEA, {"draw": lambda: 0.0})
        assert len(gateway.generator.specs) == 1


async def test_leaving_early_leaves_the_generation(start: Start, asking: Asking) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:2], Hold(asyncio.Event())]) as gateway:
        assert (await asking.first(gateway.grpc, SEA)).text == " the"
        await released(gateway)


async def test_a_cancelled_answer_says_so_to_its_reader_and_leaves_the_generation(start: Start, asking: Asking) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:1], Hold(asyncio.Event())]) as gateway:
        with pytest.raises(AnswerCancelled):
            await asking.cancelled(gateway.grpc, SEA, {}, eventually(lambda: told(gateway) == 1))
        await released(gateway)


@pytest.mark.parametrize("once", [False, True])
async def test_a_reader_whose_client_is_left_hears_an_error_and_not_a_cancel(start: Start, asking: Asking, once: bool) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:1], Hold(asyncio.Event())]) as gateway:
        with pytest.raises(AnswerCancelled):
            await asking.left(gateway.grpc, SEA, eventually(lambda: gateway.generator.running == 1), once=once)
        await released(gateway)


async def test_a_time_without_end_is_allowed(gateway: Gateway, asking: Asking) -> None:
    assert (await asking.once(gateway.grpc, SEA, {"timeout_s": math.inf})).text == TEXT


async def test_a_cancel_ends_the_wait_for_the_next_attempt(start: Start, asking: Asking) -> None:
    settings = {"retry": Retry(first_delay_s=200.0, longest_delay_s=200.0), "draw": lambda: 0.9}
    async with start(lambda _spec: [MeshError(MeshErrorCode.OVERLOADED, "so")]) as gateway:
        with pytest.raises(AnswerCancelled):
            await asking.cancelled(gateway.grpc, SEA, settings, released(gateway))
        assert len(gateway.generator.specs) == 1


def told(gateway: Gateway) -> float:
    return gateway.count("pdd_output_tokens_total", source="relay-0")


async def test_when_its_time_has_passed_the_generation_is_left(start: Start, asking: Asking) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:1], Hold(asyncio.Event())]) as gateway:
        for ask in (asking.stream, asking.once):
            with pytest.raises(DeadlineExceeded, match=r"within 0.5 s.*timeout_s.*max_tokens"):
                await ask(gateway.grpc, SEA, {}, timeout_s=0.5)
            await released(gateway)


async def released(gateway: Gateway) -> None:
    await eventually(lambda: gateway.generator.entered.is_set() and gateway.generator.running == 0)


async def test_a_cancelled_task_is_cancelled_and_not_answered_with_an_error(start: Start) -> None:
    async with start(lambda spec: [*steps(spec, IDS)[:1], Hold(asyncio.Event())]) as gateway:

        async def ask() -> None:
            async with AsyncClient(gateway.grpc) as client, client.generate(SEA) as answer:
                async for _ in answer:
                    reading.set()

        reading = asyncio.Event()
        task = asyncio.create_task(ask())
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await released(gateway)


async def test_a_gateway_that_stops_is_unavailable(start: Start, asking: Asking) -> None:
    reading = asyncio.Event()
    async with start(lambda spec: [*steps(spec, IDS)[:1], Hold(reading)]) as gateway:
        task = asyncio.create_task(asking.stream(gateway.grpc, SEA, {}))
        await gateway.generator.entered.wait()
    with pytest.raises(Unavailable):
        await task


async def test_an_answer_read_to_its_end_counts_as_none_that_was_cancelled(gateway: Gateway, asking: Asking) -> None:
    for _ in range(50):
        await asking.stream(gateway.grpc, SEA, {})
    await eventually(lambda: gateway.count("pdd_requests_total") == 50)
    assert gateway.count("pdd_requests_total", outcome="ok") == 50
