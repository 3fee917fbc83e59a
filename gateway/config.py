"""The gateway's own settings, read from the environment (`PDD_` and the field's name in capitals).

Read once by `gateway.__main__`; what concerns the mesh behind it is in `gateway.mesh.settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.openai.server import MAX_BODY_BYTES
from pdd.rpc.address import Address


class GatewaySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PDD_", extra="ignore", frozen=True, protected_namespaces=())

    instance_id: str = Field(default="gateway", min_length=1, max_length=64, description="Stable name of this gateway.")
    http: Address = Field(default="127.0.0.1:8000", description="host:port of the OpenAI-compatible API; port 0 takes any.")
    listen: Address = Field(default="127.0.0.1:50050", description="host:port of the gRPC API; port 0 takes any.")
    workers: int = Field(default=1, ge=1, le=64, description="Processes that share both ports, each with streams of its own.")
    engine: Literal["sim", "llama"] = Field(default="sim", description="Whose tokens the mesh speaks.")
    model_dir: Path = Field(default=Path("models"), description="Where `pdd model fetch` put the model; sim needs none.")
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="The registry.")
    max_body_bytes: int = Field(default=MAX_BODY_BYTES, ge=1024, description="Largest HTTP body; over it a request gets 413.")
    body_deadline_s: float = Field(default=30.0, gt=0, description="Time that a client has to send its body.")
    write_deadline_s: float = Field(default=30.0, gt=0, description="Time that a client with a full buffer has to read on.")
    log_level: str = Field(default="info", description="debug, info, warning, error or critical.")
