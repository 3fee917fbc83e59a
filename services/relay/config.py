"""The relay's settings."""

from __future__ import annotations

from pydantic import Field

from services.config import ServiceSettings


class RelaySettings(ServiceSettings):
    instance_id: str = Field(default="relay-0", min_length=1, max_length=64)
    site: str = Field(default="a", min_length=1)
