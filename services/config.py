"""The settings that all three services have, read from the environment (`PDD_` and the field's name in capitals)."""

from __future__ import annotations

import socket

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from pdd.rpc.address import Address, AddressOrEmpty

INSTANCE_ID_LENGTH = 64


def named_after_host(role: str) -> str:
    """An instance id that differs between the replicas of one image, and stays with a container that starts again.

    Of a long name the end is kept, where replicas differ.
    """
    return f"{role}-{socket.gethostname()[-(INSTANCE_ID_LENGTH - len(role) - 1) :]}"


class ServiceSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PDD_", extra="ignore", frozen=True)

    instance_id: str = Field(min_length=1, max_length=INSTANCE_ID_LENGTH, description="Stable name, by default role-hostname.")
    site: str = Field(min_length=1, description="Where it runs; instances of one site are joined by a fast network.")
    listen: Address = Field(default="127.0.0.1:0", description="host:port for gRPC; port 0 takes any.")
    advertise: AddressOrEmpty | None = Field(
        default=None, description="host:port that peers use. Default: the address listened on, with this host's name for 0.0.0.0."
    )
    metrics: AddressOrEmpty = Field(default="", description="host:port of Prometheus' /metrics; port 0 takes any. Default: none.")
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="The registry.")
    kv_budget_mb: int = Field(default=1024, ge=1, description="Host memory for KV blocks, on their way and cached, in MiB.")
    catalog_interval_ms: float = Field(default=100.0, gt=0, description="Between two batches of changes for the prefix catalog.")
    log_level: str = Field(default="info", description="debug, info, warning, error or critical.")

    @property
    def kv_budget_bytes(self) -> int:
        return self.kv_budget_mb << 20


class CachingSettings(ServiceSettings):
    """Of the services that keep a prefix cache."""

    prefix_cache_mb: int | None = Field(
        default=None, ge=0, description="How much of the budget the prefix cache may hold, in MiB; 0 turns it off. Default: half."
    )

    @property
    def prefix_cache_bytes(self) -> int:
        return self.kv_budget_bytes // 2 if self.prefix_cache_mb is None else self.prefix_cache_mb << 20
