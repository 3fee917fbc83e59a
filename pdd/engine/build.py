"""Put an engine together from its settings.

Called by the services' mains. Imports an engine's model only where it is asked for, so that sim needs nothing installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pdd.engine.base import Engine, EngineFault
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute, ThreadCompute
from pdd.engine.config import EngineSettings
from pdd.engine.model import Model
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.digest import Noise
from pdd.engine.sim.model import SimConfig, SimModel

_Profile = TypeVar("_Profile")


def build_engine(settings: EngineSettings) -> Engine:
    """An engine to be entered. Raises EngineFault where the settings ask for what does not exist."""
    try:
        limits = StepLimits(settings.chunk_tokens, settings.step_tokens, settings.extend)
    except ValueError as error:
        raise EngineFault(f"PDD_CHUNK_TOKENS and PDD_STEP_TOKENS: {error}") from error
    if settings.engine == "sim":
        return BatchEngine(_sim_model(settings), limits, InlineCompute())
    return BatchEngine(_llama_model(settings), limits, ThreadCompute())


def _sim_model(settings: EngineSettings) -> Model:
    config = SimConfig(
        slots=settings.slots,
        context_tokens=settings.context,
        block_tokens=settings.block_tokens,
        page_tokens=settings.page_tokens,
        device_dtype=settings.device_dtype,
        hardware=_named("PDD_SIM_PROFILE", settings.sim_profile, HARDWARE),
        model=_named("PDD_SIM_MODEL", settings.sim_model, MODELS),
        pad_to_declared=settings.sim_pad,
        noise=Noise(settings.sim_logit_noise, settings.sim_noise_seed),
    )
    return SimModel(config)


def _llama_model(settings: EngineSettings) -> Model:
    if settings.model_dir is None:
        raise EngineFault("PDD_MODEL_DIR is not set: `pdd model fetch` makes such a directory")
    from pdd.engine.llama.binding import ContextSettings
    from pdd.engine.llama.model import LlamaModel

    context = ContextSettings(
        context_tokens=settings.context,
        sequences=settings.slots,
        batch_tokens=settings.step_tokens + settings.slots,  # see schedule: decode rows come on top
        ubatch_tokens=settings.llama_ubatch,
        threads=settings.llama_threads,
    )
    return LlamaModel(settings.model_dir, context, settings.block_tokens)


def _named(variable: str, name: str, table: Mapping[str, _Profile]) -> _Profile:
    if name not in table:
        raise EngineFault(f"{variable}={name}: use one of {', '.join(table)}")
    return table[name]
