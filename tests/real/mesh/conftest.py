"""The reference answers, computed once by a llama.cpp process of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from pdd.model.card import ModelCard
from tests.real.mesh.prompts import CASES
from tests.real.mesh.reference import greedy_continuations

REFERENCE_TOKENS = 200


@pytest.fixture(scope="session")
def reference(model_dir: Path, card: ModelCard) -> dict[str, list[int]]:
    """200 greedy ids after each prompt, by the prompt's name."""
    gguf = next(model_dir.glob("*.gguf"))
    answers = greedy_continuations(gguf, [card.encode(case.text) for case in CASES], REFERENCE_TOKENS)
    return dict(zip((case.name for case in CASES), answers, strict=True))


Continue: TypeAlias = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="session")
def alone(model_dir: Path) -> Continue:
    """So many greedy ids after a prompt, as one process makes them."""
    gguf = next(model_dir.glob("*.gguf"))
    return lambda ids, count: greedy_continuations(gguf, [ids], count)[0]
