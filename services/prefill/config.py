"""Prefill's settings."""

from __future__ import annotations

from pydantic import Field

from services.config import ServiceSettings


class PrefillSettings(ServiceSettings):
    instance_id: str = Field(default="prefill-0", min_length=1, max_length=64)
    site: str = Field(default="a", min_length=1)
