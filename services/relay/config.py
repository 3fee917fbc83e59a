"""The relay's settings."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from services.config import ServiceSettings, named_after_host


class RelaySettings(ServiceSettings):
    instance_id: str = Field(default_factory=partial(named_after_host, "relay"), min_length=1, max_length=64)
    site: str = Field(default="a", min_length=1)
