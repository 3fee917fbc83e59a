"""Where traces go, read from the environment. The same in every process."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class TraceSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PDD_", extra="ignore", frozen=True, populate_by_name=True)

    trace_file: str = Field(default="", description="File to append spans to, one JSON object a line.")
    trace_sample: float = Field(default=1.0, ge=0, le=1, description="Share of requests that are traced.")
    otlp_endpoint: str = Field(
        default="",
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="http://host:port of a collector that takes OTLP over gRPC.",
    )

    @property
    def on(self) -> bool:
        return bool(self.trace_file or self.otlp_endpoint)
