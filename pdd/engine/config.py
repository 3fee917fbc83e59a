"""The settings of an engine, read from the environment (`PDD_` and the field's name in capitals).

Made by the services' mains, or by hand in tests; read by `build`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_CONTEXT_TOKENS = {"sim": 8192, "llama": 4096}
_EXTEND_TOKENS = {"sim": 256, "llama": 32}


class EngineSettings(BaseSettings):
    """`extend_tokens` is what a handoff may take of a step that others decode in; its defaults follow from what a step costs.

    llama computes a step in passes of `llama_ubatch` rows, one after another. Up to a pass, a token gets cheaper the more there
    are (measured on a CPU: 11 ms alone, 7.6 ms among 32); beyond it, more of them save nothing and only make the others wait.
    So one exact pass of 32. On a GPU, a pass of few rows takes as long as reading the weights, and from some number of rows on it
    grows with them (`sim.cost`, dense-8b): 256 are free on gpu-a, and make a step of 28 ms on gpu-b, which is about the time
    that a service holds between two tokens anyway.
    """

    model_config = SettingsConfigDict(env_prefix="PDD_", extra="ignore", frozen=True, protected_namespaces=())

    engine: Literal["sim", "llama"] = "sim"
    model_dir: Path | None = Field(default=None, description="Where `pdd model fetch` put the model. Needed by llama.")
    slots: int = Field(default=8, ge=1, le=256, description="Sequences in a batch.")
    context_tokens: int | None = Field(
        default=None, ge=16, description="Prompt and output of one sequence. Default: 8192 sim, 4096 llama."
    )
    chunk_tokens: int = Field(default=128, ge=1, description="Prompt tokens prefilled in a step.")
    step_tokens: int = Field(default=512, ge=1, description="Known tokens in a step, extends included; at least chunk_tokens.")
    block_tokens: int = Field(default=16, ge=1, description="Tokens of a KV block; equal in the whole mesh.")
    extend_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that extends may take of a step. Default: 256 sim, 32 llama."
    )
    page_tokens: int = Field(default=16, ge=1, description="Tokens of a page of the sim's device.")
    device_dtype: Literal["f16", "f32"] = Field(default="f16", description="KV elements of the sim's device.")
    sim_profile: str = Field(default="cpu-tiny", description="The hardware that sim plays: instant, cpu-tiny, gpu-a or gpu-b.")
    sim_model: str = Field(default="tiny", description="The model whose sizes sim plays: tiny or dense-8b.")
    sim_pad: bool = Field(default=True, description="Make sim's payloads as long as the KV they stand for.")
    sim_logit_noise: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Greatest difference of this sim's logits from the exact ones."
    )
    sim_noise_seed: int = Field(default=0, ge=0, lt=2**64, description="Sims with another seed differ otherwise.")
    llama_threads: int = Field(default=1, ge=1, description="Above 1 is faster and no longer exact.")
    llama_ubatch: int = Field(default=32, ge=1, description="Rows of one llama.cpp pass. Above 32 is faster and no longer exact.")

    @property
    def context(self) -> int:
        """`context_tokens`, or the engine's default."""
        return self.context_tokens or _CONTEXT_TOKENS[self.engine]

    @property
    def extend(self) -> int:
        """`extend_tokens`, or the engine's default."""
        return self.extend_tokens or _EXTEND_TOKENS[self.engine]
