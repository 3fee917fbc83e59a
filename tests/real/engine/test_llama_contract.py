"""The contract of every engine, held by the real model at its exact settings."""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from pdd.engine.base import Engine
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import ThreadCompute
from pdd.engine.llama.binding import ContextSettings
from pdd.engine.llama.model import LlamaModel
from pdd.engine.schedule import StepLimits
from pdd.model.card import ModelCard
from tests.engine_contract.contract import EngineContract
from tests.real.engine.texts import PROSE

pytestmark = pytest.mark.real


class TestLlama(EngineContract):
    slots = 3

    def running(self, extend_tokens: int = 256) -> AbstractAsyncContextManager[Engine]:
        limits = StepLimits(extend_tokens=extend_tokens)
        context = ContextSettings(context_tokens=512, sequences=self.slots, batch_tokens=limits.step_tokens + self.slots)
        return BatchEngine(LlamaModel(self._model_dir, context), limits, ThreadCompute())

    @pytest.fixture(autouse=True)
    def _model(self, model_dir: Path, card: ModelCard) -> None:
        self._model_dir, self._prose = model_dir, card.encode(PROSE)

    def prompt(self, tokens: int) -> list[int]:
        return list(itertools.islice(itertools.cycle(self._prose), tokens))
