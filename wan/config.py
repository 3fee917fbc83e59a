"""The WAN relay's settings, from the environment (`PDD_WAN_…`)."""

from __future__ import annotations

from typing import Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pdd.rpc.address import Address
from wan.link import LinkSettings


class WanSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PDD_WAN_", frozen=True)

    control_listen: Address = "127.0.0.1:8474"  # host:port of the control API
    forward_host: str = "127.0.0.1"  # where forwarded ports listen, and what their addresses say
    rate_mbit: float | None = Field(default=None, gt=0)  # in each direction; unset for no limit
    rtt_ms: float = Field(default=40.0, ge=0)
    jitter_ms: float = Field(default=0.0, ge=0)
    loss: float = Field(default=0.0, ge=0, lt=1)
    # Site A's registry, for the mains of site B: host:port that they use, and host:port where it is; both or neither.
    registry_listen: Address | None = None
    registry_target: Address | None = None
    seed: int = 0  # of jitter and loss
    log_level: str = Field(default="info", validation_alias=AliasChoices("PDD_LOG_LEVEL", "PDD_WAN_LOG_LEVEL"))

    @model_validator(mode="after")
    def _registry_is_whole(self) -> Self:
        if (self.registry_listen is None) != (self.registry_target is None):
            raise ValueError("PDD_WAN_REGISTRY_LISTEN and PDD_WAN_REGISTRY_TARGET: set both or neither")
        return self

    def link(self) -> LinkSettings:
        return LinkSettings(self.rate_mbit, self.rtt_ms, self.jitter_ms, self.loss)
