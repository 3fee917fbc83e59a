"""`pdd demo`: a mesh, one question, its answer and timeline, and nothing left behind. `make demo` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from pdd.cli.ask import stream_answer
from pdd.cli.cluster import LocalMesh, MeshStartError
from pdd.cli.console import EXIT_INTERRUPTED, CommandError, ended_by_signal, plain_console, run
from pdd.cli.options import (
    DEFAULT_MODEL_DIR,
    EngineOption,
    HandoffOption,
    LogDirOption,
    ModelDirOption,
    RateOption,
    RttOption,
    mesh_options,
)
from pdd.cli.plan import DEFAULT_RATE_MBIT, DEFAULT_RTT_MS, EngineName, Handoff, MeshOptions, Pipeline
from pdd.cli.preflight import check_engine
from pdd.cli.up import describe
from pdd.client import Chat, Request

# Its KV takes longer over the link than prefill takes to make it, or there would be nothing to see.
QUESTION = """\
Here is the beginning of a story. Write how it goes on, with a long and happy ending.

Mira kept the lighthouse at the end of the long pier. Every evening she climbed the two hundred steps with a can of oil, \
cleaned the glass with a soft cloth, and lit the lamp. The fishermen in the village trusted her light more than the stars, \
because clouds can hide the stars, and nothing had ever hidden her lamp.

One evening in November a storm came earlier than anybody had expected. All boats came home but one: the red boat of her \
brother Jonas, who always went out farther than the others. Mira climbed the steps as fast as she could. But when she reached \
the top, she saw that the wind had broken a window, that the lamp was cold and wet, and that there was no oil left in the can. \
Far out on the sea, between two waves, she saw a small red sail. She took a deep breath, because she knew what she had to do."""

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answering:
    """How the demo's answer is made. It always has its full length, so that two runs can be compared."""

    max_tokens: int
    temperature: float
    seed: int


def demo(
    engine: EngineOption = EngineName.LLAMA,
    rtt: RttOption = DEFAULT_RTT_MS,
    rate: RateOption = DEFAULT_RATE_MBIT,
    handoff: HandoffOption = Handoff.AUTO,
    max_tokens: Annotated[int, typer.Option(min=2, help="Length of the answer, tokens.")] = 300,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same answer.")] = 1,
    model_dir: ModelDirOption = DEFAULT_MODEL_DIR,
    log_dir: LogDirOption = None,
) -> None:
    """Start a mesh on free ports, ask it one question over prefill, relay and main, show how it went, and stop everything."""
    options = mesh_options(
        engine=engine,
        pipeline=Pipeline.RELAY,  # what it is there to show
        handoff=handoff,
        rtt_ms=rtt,
        rate_mbit=rate,
        model_dir=model_dir.absolute(),
        log_dir=log_dir,
    )
    run(_demo(options, Answering(max_tokens, temperature, seed)))


async def _demo(options: MeshOptions, answering: Answering) -> None:
    status, page = plain_console(), Console()
    check_engine(options.engine, options.model_dir)
    status.print(describe(options))
    with ended_by_signal(lambda: status.print("\nstopping")):
        try:
            async with LocalMesh(options, status.print) as mesh:
                status.print(f"ready; asking for {answering.max_tokens} tokens\n")
                request = Request(
                    Chat.question(QUESTION),
                    max_tokens=answering.max_tokens,
                    min_tokens=answering.max_tokens,
                    temperature=answering.temperature,
                    seed=answering.seed,
                )
                await stream_answer(mesh.grpc_address, request, _TIMEOUT_S, page)
        except MeshStartError as error:
            raise CommandError(str(error)) from error
        _check_gone(mesh)
        status.print("\nstopped: no process of the mesh is left")
        return
    raise typer.Exit(EXIT_INTERRUPTED)


def _check_gone(mesh: LocalMesh) -> None:
    left = [child.name for child in mesh.children.values() if child.returncode is None]
    if left:
        raise CommandError(f"still running: {', '.join(left)}")
