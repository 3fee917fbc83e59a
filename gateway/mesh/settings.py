"""What can be configured of the mesh behind the gateway. Read once at the start by `gateway.__main__`."""

from __future__ import annotations

import enum

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.machine import Pipeline
from gateway.handoff.pace import Pace
from gateway.routing.settings import RoutePolicy
from gateway.routing.snapshot import Link


class PipelineChoice(enum.Enum):
    AUTO = "auto"  # each request's own, by its prefix hits and the line
    RELAY = "relay"
    DIRECT = "direct"

    @property
    def forced(self) -> Pipeline | None:
        return None if self is PipelineChoice.AUTO else Pipeline(self.value)


class HandoffChoice(enum.Enum):
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"
    AUTO = "auto"  # by each relay's live load


class MeshSettings(BaseSettings):
    """Environment variables with the prefix PDD_, for example PDD_PIPELINE=direct."""

    model_config = SettingsConfigDict(env_prefix="PDD_")

    pipeline: PipelineChoice = PipelineChoice.AUTO
    stall_budget_ms: float = Field(default=200.0, gt=0)  # from the first token to the second, above which a relay is used
    ttft_budget_s: float = Field(default=10.0, gt=0)  # within which a request may wait for a relay's slot
    waiting_requests: int = Field(default=256, ge=1)  # that may wait for a relay at a time
    wan_mbit: float = Field(default=1000.0, gt=0)  # goodput of a line between sites that has not been measured yet
    handoff: HandoffChoice = HandoffChoice.AUTO
    itl_target_ms: float = Field(default=50.0, gt=0)  # between tokens; a handoff's stall and throttle are measured by it
    max_rounds: int = Field(default=8, ge=1)  # Catch-Up rounds of one handoff
    agreement_sample: float = Field(default=0.05, ge=0, le=1)  # share of handoffs in which main checks the relay's tokens
    lease_s: float = Field(default=120.0, ge=0.001)  # KV that a request has not used by then is dropped
    # Without a word on a request from any instance. Prefill says none while it computes, a minute for a long prompt on a CPU.
    stall_deadline_s: float = Field(default=120.0, gt=0)
    tenant_salt: str = ""  # enters every block hash
    instance_poll_s: float = Field(default=0.5, gt=0)  # between two looks into the registry
    registry_timeout_s: float = Field(default=2.0, gt=0)  # for one look
    absence_grace_s: float = Field(default=2.0, ge=0)  # for which a connected instance may be out of the registry
    greeting_timeout_s: float = Field(default=5.0, gt=0)  # to connect and exchange Hello
    write_timeout_s: float = Field(default=10.0, gt=0)  # for one command to leave
    reconnect_max_s: float = Field(default=5.0, gt=0)  # largest pause between two attempts at an instance
    closing_timeout_s: float = Field(default=10.0, gt=0)  # for the answer to an abort
    outbox_commands: int = Field(default=4096, ge=16)  # that may wait for one instance's stream
    unread_tokens: int = Field(default=4096, ge=1)  # that may wait for one client

    def route_policy(self) -> RoutePolicy:
        return RoutePolicy(
            pipeline=self.pipeline.forced,
            stall_budget_s=self.stall_budget_ms / 1000,
            ttft_budget_s=self.ttft_budget_s,
            step_s=self.itl_target_ms / 1000,
        )

    def line_prior(self) -> Link:
        return Link(self.wan_mbit * 125_000)

    def policy(self, prior: Pace) -> HandoffPolicy:
        return HandoffPolicy(itl_target_s=self.itl_target_ms / 1000, max_rounds=self.max_rounds, prior=prior)
