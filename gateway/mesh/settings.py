"""What can be configured of the mesh behind the gateway. Read once at the start by `gateway.__main__`."""

from __future__ import annotations

import enum

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.machine import Pipeline
from gateway.handoff.pace import Pace


class HandoffChoice(enum.Enum):
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"
    AUTO = "auto"  # by each relay's live load


class MeshSettings(BaseSettings):
    """Environment variables with the prefix PDD_, for example PDD_PIPELINE=direct."""

    model_config = SettingsConfigDict(env_prefix="PDD_")

    pipeline: Pipeline = Pipeline.RELAY
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

    def policy(self, prior: Pace) -> HandoffPolicy:
        return HandoffPolicy(itl_target_s=self.itl_target_ms / 1000, max_rounds=self.max_rounds, prior=prior)
