"""The contract of every engine, held by the real model at its exact settings."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
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
    limits = StepLimits()
    slots = 3

    @pytest.fixture
    async def engine(self, model_dir: Path) -> AsyncIterator[Engine]:
        context = ContextSettings(context_tokens=512, sequences=self.slots, batch_tokens=self.limits.step_tokens + self.slots)
        async with BatchEngine(LlamaModel(model_dir, context), self.limits, ThreadCompute()) as engine:
            yield engine

    @pytest.fixture(autouse=True)
    def _ids(self, card: ModelCard) -> None:
        self._prose = card.encode(PROSE)

    def prompt(self, tokens: int) -> list[int]:
        return list(itertools.islice(itertools.cycle(self._prose), tokens))
