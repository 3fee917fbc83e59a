"""The real model, or a word on how to get it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdd.model.card import ModelCard
from pdd.model.load import load_card
from pdd.model.manifest import ModelFilesError, read_manifest


@pytest.fixture(scope="session")
def model_dir() -> Path:
    pytest.importorskip("llama_cpp", reason="needs the llama engine: pip install 'pdd[llama]'")
    directory = Path(os.environ.get("PDD_MODEL_DIR", "models/SmolLM2-135M-Instruct"))
    try:
        read_manifest(directory)
    except ModelFilesError as error:
        pytest.skip(str(error))
    return directory


@pytest.fixture(scope="session")
def card(model_dir: Path) -> ModelCard:
    return load_card("llama", model_dir)
