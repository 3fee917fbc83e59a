"""`pdd ask`: one question to a running mesh, the answer as it is made, and the timeline of how.

Talks to the gateway's gRPC Inference service and to nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from rich.console import Console

from pdd.cli.answer import AnswerPrinter
from pdd.cli.console import EXIT_INTERRUPTED, CommandError, ended_by_signal, run
from pdd.cli.timeline import draw
from pdd.rpc.channel import open_channel
from pdd.v1 import inference_pb2
from pdd.v1.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from pdd.v1.inference_pb2_grpc import InferenceAsyncStub

_REACH_TIMEOUT_S = 5.0


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    url: Annotated[str, typer.Option(help="host:port of the gateway's gRPC API.")] = "127.0.0.1:50050",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, tokens.")] = 300,
    min_tokens: Annotated[int, typer.Option(min=0, help="The model does not end its answer before this many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Same seed, same answer. [random]")] = None,
    model: Annotated[str, typer.Option(help="Model id; not needed where there is one.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest time for the whole answer, seconds.")] = 300.0,
) -> None:
    """Ask a running mesh (`pdd up`), and see which instance made which token and when."""
    request = make_request(
        question, max_tokens=max_tokens, min_tokens=min_tokens, temperature=temperature, seed=seed, model=model
    )
    run(_ask(url, request, timeout, Console()))


def make_request(
    question: str, *, max_tokens: int, min_tokens: int = 0, temperature: float = 0.0, seed: int | None = None, model: str = ""
) -> inference_pb2.GenerateRequest:
    """A one-turn conversation."""
    options = inference_pb2.GenerateOptions(max_tokens=max_tokens, min_tokens=min_tokens, temperature=temperature)
    if seed is not None:
        options.seed = seed
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content=question)])
    return inference_pb2.GenerateRequest(model=model, chat=chat, options=options)


async def _ask(address: str, request: inference_pb2.GenerateRequest, timeout_s: float, console: Console) -> None:
    with ended_by_signal(lambda: console.print("\ncancelled")):
        await stream_answer(address, request, timeout_s, console)
        return
    raise typer.Exit(EXIT_INTERRUPTED)


async def stream_answer(
    address: str, request: inference_pb2.GenerateRequest, timeout_s: float, console: Console
) -> inference_pb2.Done:
    """Print the answer as it comes and the timeline at its end. Raises CommandError."""
    async with open_channel(address) as channel:
        stub = InferenceStub(channel)
        await _reach(stub, address)
        printer = AnswerPrinter(console)
        done: inference_pb2.Done | None = None
        try:
            async for reply in stub.Generate(request, timeout=timeout_s):
                if reply.HasField("delta"):
                    printer.show(reply.delta)
                else:
                    done = reply.done
        except grpc.aio.AioRpcError as error:
            raise CommandError(f"the gateway ended the request ({error.code().name}): {error.details()}") from error
    if done is None:
        raise CommandError("the gateway ended the stream without a result: see its log")
    printer.finish()
    console.print(draw(done, console.width))
    return done


async def _reach(stub: InferenceAsyncStub, address: str) -> None:
    """Tell a gateway that is not there from one that refuses the request."""
    try:
        await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=_REACH_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise CommandError(
            f"no gateway at {address} ({error.code().name}): start a mesh with `pdd up`, or give its gRPC address with --url"
        ) from error
