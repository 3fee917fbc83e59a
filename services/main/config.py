"""Main's settings."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from services.config import CachingSettings, named_after_host


class MainSettings(CachingSettings):
    instance_id: str = Field(default_factory=partial(named_after_host, "main"), min_length=1, max_length=64)
    site: str = Field(default="b", min_length=1)
    catalog_interval_ms: float = Field(default=200.0, gt=0, description="Larger batches: the catalog is across the slow link.")
    wan_control: str | None = Field(
        default=None, description="http://host:port of the WAN relay; a port leased there is advertised."
    )
