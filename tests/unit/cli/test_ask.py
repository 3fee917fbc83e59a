import io
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from rich.console import Console

from pdd.cli.ask import stream_answer
from pdd.cli.console import CommandError
from pdd.client import Chat, Request
from pdd.rpc.server import serve
from pdd.v1 import inference_pb2, inference_pb2_grpc

REQUEST = Request(Chat.question("Why?"), max_tokens=3, temperature=0.5, seed=7)


class ScriptedInference(inference_pb2_grpc.InferenceServicer):
    """A gateway that gives the replies it was made with, then the error, if any."""

    def __init__(self, replies: Sequence[inference_pb2.GenerateReply], error: tuple[grpc.StatusCode, str] | None = None) -> None:
        self.replies = replies
        self.error = error
        self.requests: list[inference_pb2.GenerateRequest] = []

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:  # type: ignore[override]
        self.requests.append(request)
        for reply in self.replies:
            await context.write(reply)
        if self.error is not None:
            await context.abort(*self.error)

    async def GenerateOnce(self, request: inference_pb2.GenerateRequest, context: Any) -> inference_pb2.GenerateResponse:
        raise AssertionError("not called by ask")

    async def ListModels(self, request: inference_pb2.ListModelsRequest, context: Any) -> inference_pb2.ListModelsResponse:
        raise AssertionError("not called by ask")


async def answer(servicer: ScriptedInference) -> str:
    def register(server: grpc.aio.Server) -> list[str]:
        inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
        return ["pdd.v1.Inference"]

    console = Console(file=io.StringIO(), width=100)
    async with serve("127.0.0.1:0", register) as server:
        await stream_answer(server.address, REQUEST, 10.0, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def delta(source: str, text: str) -> inference_pb2.GenerateReply:
    return inference_pb2.GenerateReply(delta=inference_pb2.Delta(source=source, text=text, tokens=[1]))


DONE = inference_pb2.GenerateReply(
    done=inference_pb2.Done(
        finish_reason="length",
        usage=inference_pb2.Usage(prompt_tokens=5, completion_tokens=2),
        timeline=inference_pb2.Timeline(pipeline="relay", handoff="one_shot", eager_tokens=1),
    )
)


async def test_the_answer_is_followed_by_its_timeline() -> None:
    text = await answer(ScriptedInference([delta("relay-0", "Because"), delta("main-0", " of it."), DONE]))
    assert text.startswith("[relay-0]Because[main-0] of it.\n")
    assert "pipeline relay, handoff one_shot" in text


async def test_the_question_goes_out_as_a_conversation_with_its_options() -> None:
    servicer = ScriptedInference([DONE])
    await answer(servicer)
    (request,) = servicer.requests
    assert [(message.role, message.content) for message in request.chat.messages] == [("user", "Why?")]
    assert (request.options.max_tokens, request.options.temperature, request.options.seed) == (3, 0.5, 7)


async def test_the_gateways_refusal_is_told_in_its_words() -> None:
    servicer = ScriptedInference([], (grpc.StatusCode.INVALID_ARGUMENT, "max_tokens: the context has 2 left"))
    with pytest.raises(CommandError, match=r"^max_tokens: the context has 2 left$"):
        await answer(servicer)


async def test_a_stream_without_a_result_is_an_error() -> None:
    with pytest.raises(CommandError, match="without a result"):
        await answer(ScriptedInference([delta("relay-0", "Bec")]))


@pytest.fixture
async def nobody() -> AsyncIterator[str]:
    """An address that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def test_without_a_gateway_it_says_to_start_one(nobody: str) -> None:
    with pytest.raises(CommandError, match=f"{nobody}.*pdd up"):
        await stream_answer(nobody, REQUEST, 10.0, Console(file=io.StringIO()))
