"""Llama engines of any size, each with an observer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pdd.engine.batch import BatchEngine
from pdd.engine.compute import ThreadCompute
from pdd.engine.llama.binding import ContextSettings
from pdd.engine.llama.model import LlamaModel
from pdd.engine.schedule import StepLimits
from tests.engine_contract.observer import Observer, observe


@asynccontextmanager
async def llama(model_dir: Path, slots: int, context_tokens: int, chunk_tokens: int = 128) -> AsyncIterator[Observer]:
    limits = StepLimits(chunk_tokens=chunk_tokens)
    context = ContextSettings(context_tokens, slots, batch_tokens=limits.step_tokens + slots)
    async with BatchEngine(LlamaModel(model_dir, context), limits, ThreadCompute()) as engine, observe(engine) as observer:
        yield observer
