"""`pdd ask`: one question to a running mesh, the answer as it is made, and the timeline of how.

Talks to the gateway through `pdd.client` and to nothing else.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pdd.cli.answer import AnswerPrinter
from pdd.cli.console import EXIT_INTERRUPTED, CommandError, ended_by_signal, run
from pdd.cli.timeline import draw
from pdd.client import AsyncClient, Chat, ClientError, Request, Result
from pdd.client.request import DEFAULT_ADDRESS


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    url: Annotated[str, typer.Option(help="host:port of the gateway's gRPC API.")] = DEFAULT_ADDRESS,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, tokens.")] = 300,
    min_tokens: Annotated[int, typer.Option(min=0, help="The model does not end its answer before this many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Same seed, same answer. [random]")] = None,
    model: Annotated[str, typer.Option(help="Model id; not needed where there is one.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest time for the whole answer, seconds.")] = 300.0,
) -> None:
    """Ask a running mesh (`pdd up`), and see which instance made which token and when."""
    request = Request(
        Chat.question(question), model, max_tokens=max_tokens, min_tokens=min_tokens, temperature=temperature, seed=seed
    )
    run(_ask(url, request, timeout, Console()))


async def _ask(address: str, request: Request, timeout_s: float, console: Console) -> None:
    with ended_by_signal(lambda: console.print("\ncancelled")):
        await stream_answer(address, request, timeout_s, console)
        return
    raise typer.Exit(EXIT_INTERRUPTED)


async def stream_answer(address: str, request: Request, timeout_s: float, console: Console) -> Result:
    """Print the answer as it comes and the timeline at its end. Raises CommandError."""
    printer = AnswerPrinter(console)
    try:
        async with AsyncClient(address) as client, client.generate(request, timeout_s=timeout_s) as answer:
            async for delta in answer:
                printer.show(delta)
    except ClientError as error:
        raise CommandError(str(error)) from error
    printer.finish()
    console.print(draw(answer.result, console.width))
    return answer.result
