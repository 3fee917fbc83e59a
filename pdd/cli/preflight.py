"""What has to be there before a mesh can start with an engine; asked first, so that the answer is one line and not seven logs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pdd.cli.console import CommandError
from pdd.cli.plan import EngineName
from pdd.model.manifest import read_manifest


def check_engine(engine: EngineName, model_dir: Path) -> None:
    """Raises CommandError or ModelFilesError where the engine or its model is missing."""
    if engine is EngineName.LLAMA:
        if importlib.util.find_spec("llama_cpp") is None:
            raise CommandError("the llama engine is not installed: run `make setup-llama`, or use --engine sim")
        read_manifest(model_dir)
