"""Prefill's settings."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from services.config import CachingSettings, named_after_host


class PrefillSettings(CachingSettings):
    instance_id: str = Field(default_factory=partial(named_after_host, "prefill"), min_length=1, max_length=64)
    site: str = Field(default="a", min_length=1)
    backlog_mb: int | None = Field(
        default=None,
        ge=1,
        description="KV that may wait for one target, in MiB; a transfer beyond it is dropped. Default: half of the budget.",
    )

    @property
    def backlog_bytes(self) -> int:
        return self.kv_budget_bytes // 2 if self.backlog_mb is None else self.backlog_mb << 20
