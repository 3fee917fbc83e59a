"""`pdd model fetch`: model, tokenizer and a manifest with their digests, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdd.cli.console import fail, plain_console
from pdd.cli.options import DEFAULT_MODEL_DIR
from pdd.model.fetch import fetch, from_gguf
from pdd.model.manifest import ModelFilesError


def fetch_model(
    gguf: Annotated[Path | None, typer.Option(help="Take this GGUF file in place of the default model.")] = None,
    model_dir: Annotated[
        Path, typer.Option("--dir", envvar="PDD_MODEL_DIR", help="Folder to put it in; kept as it is where it is whole.")
    ] = DEFAULT_MODEL_DIR,
) -> None:
    """Get SmolLM2-135M-Instruct (98 MB), or make a model folder of a GGUF file. Safe to run again."""
    console = plain_console()
    try:
        manifest = fetch(model_dir, console.print) if gguf is None else from_gguf(gguf, model_dir, console.print)
    except ModelFilesError as error:
        fail(str(error))
    console.print(
        f"{manifest.name}: {manifest.weights.size / 1e6:.0f} MB, sha256 {manifest.weights.sha256[:16]}…, in {model_dir}"
    )
