"""The command-line options that `pdd up` and `pdd demo` share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pdd.cli.plan import EngineName, Handoff, MeshOptions, Pipeline

EngineOption = Annotated[
    EngineName, typer.Option(help="llama: llama.cpp and a real model. sim: a simulated one, needs no download.")
]
RttOption = Annotated[float, typer.Option(min=0, help="Round trip of the link between the sites, ms.")]
RateOption = Annotated[float, typer.Option(min=0.01, help="Rate of the link, Mbit/s in each direction.")]
PipelineOption = Annotated[
    Pipeline,
    typer.Option(help="relay: prefill, relay, main. direct: prefill, main. auto: for each request, by prefix hits and the link."),
]
HandoffOption = Annotated[Handoff, typer.Option(help="How the relay hands over to main; auto follows the relay's load.")]
ModelDirOption = Annotated[Path, typer.Option(envvar="PDD_MODEL_DIR", help="Where `pdd model fetch` put the model.")]
LogDirOption = Annotated[Path | None, typer.Option(help="Folder for one log file per process [a new temporary one]")]

DEFAULT_MODEL_DIR = Path("models/SmolLM2-135M-Instruct")


def mesh_options(**values: Any) -> MeshOptions:
    """MeshOptions of command-line values; a combination that can't be is a usage error."""
    try:
        return MeshOptions(**values)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
