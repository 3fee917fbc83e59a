"""What the doctor finds. Every kind is a row of docs/doctor.md."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    FAULT = "fault"  # requests fail, stall or go where they should not, or it misleads whoever looks for that
    WARNING = "warning"  # it works, and not as well as it could


class Check(enum.Enum):
    """What was looked at, and found otherwise than it should be."""

    REDIS_AWAY = "redis_away"
    REDIS_SLOW = "redis_slow"
    REDIS_EVICTS = "redis_evicts"
    REDIS_FULL = "redis_full"
    ROLE_MISSING = "role_missing"
    HEARTBEAT_LOST = "heartbeat_lost"
    RESTARTED = "restarted"
    DUPLICATE_ID = "duplicate_id"
    UNREACHABLE = "unreachable"
    WRONG_ADDRESS = "wrong_address"
    OTHER_VERSION = "other_version"
    LAYOUT_MISMATCH = "layout_mismatch"
    CLOCK_SKEW = "clock_skew"
    LINK_SLOW = "link_slow"
    LINK_FAST = "link_fast"
    LINK_UNMEASURED = "link_unmeasured"
    CACHE_UNPUBLISHED = "cache_unpublished"
    CACHE_MISMATCH = "cache_mismatch"
    GATEWAY_AWAY = "gateway_away"
    GATEWAY_NOT_READY = "gateway_not_ready"
    GATEWAY_DEGRADED = "gateway_degraded"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    check: Check
    subject: str  # "redis", "gateway", a role or an instance's id
    what: str
    do: str


def fault(check: Check, subject: str, what: str, do: str) -> Finding:
    return Finding(Severity.FAULT, check, subject, what, do)


def warning(check: Check, subject: str, what: str, do: str) -> Finding:
    return Finding(Severity.WARNING, check, subject, what, do)
