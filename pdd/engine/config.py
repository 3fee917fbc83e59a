"""The settings of an engine, read from the environment (`PDD_` and the field's name in capitals).

Made by the services' mains, or by hand in tests; read by `build`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_CONTEXT_TOKENS = {"sim": 8192, "llama": 4096}


class EngineSettings(BaseSettings):
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
    page_tokens: int = Field(default=16, ge=1, description="Tokens of a page of the sim's device; declared only.")
    sim_profile: str = Field(default="cpu-tiny", description="The hardware that sim plays: instant, cpu-tiny, gpu-a or gpu-b.")
    sim_model: str = Field(default="tiny", description="The model whose sizes sim plays: tiny or dense-8b.")
    sim_pad: bool = Field(default=True, description="Make sim's payloads as long as the KV they stand for.")
    llama_threads: int = Field(default=1, ge=1, description="Above 1 is faster and no longer exact.")
    llama_ubatch: int = Field(default=32, ge=1, description="Rows of one llama.cpp pass. Above 32 is faster and no longer exact.")

    @property
    def context(self) -> int:
        """`context_tokens`, or the engine's default."""
        return self.context_tokens or _CONTEXT_TOKENS[self.engine]
