"""The doctor's words: tables and findings for a person, or all of it as JSON. Pure; called by the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pdd.doctor.facts import Facts, GatewayAway, GatewayFacts, Goodput, InstanceFacts, RedisAway, Report, Unmeasured
from pdd.doctor.findings import Finding, Severity

_STYLES = {Severity.FAULT: "red", Severity.WARNING: "yellow"}
_UNKNOWN = "-"


def draw(facts: Facts, findings: Sequence[Finding]) -> RenderableType:
    parts: list[RenderableType] = [Text(_redis_line(facts)), Text(_gateway_line(facts)), _instances(facts.instances), Text()]
    for finding in findings:
        head = Text(f"{finding.severity.value} {finding.check.value}: ", _STYLES[finding.severity])
        parts += [head + Text(f"{finding.subject}: {finding.what}"), Padding(Text(f"do: {finding.do}"), (0, 0, 0, 2))]
    return Group(*parts, Text(_summary(findings)))


def as_json(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "ok": not any(finding.severity is Severity.FAULT for finding in findings),
        "findings": [_finding(finding) for finding in findings],
        "instances": [_instance(one) for one in facts.instances],
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "severity": finding.severity.value,
        "check": finding.check.value,
        "subject": finding.subject,
        "what": finding.what,
        "do": finding.do,
    }


def _instance(one: InstanceFacts) -> dict[str, Any]:
    """Figures are null where there are none."""
    registration, found = one.registration, one.found
    report = found if isinstance(found, Report) else None
    return {
        "id": registration.instance.id,
        "incarnation": f"{registration.instance.incarnation:016x}",
        "role": registration.role.value,
        "site": registration.site,
        "address": registration.address,
        "round_trip_ms": report and round(report.round_trip_s * 1000, 3),
        "clock_offset_ms": report and round(report.clock_offset_s * 1000, 3),
        "goodput_mbit": round(one.link.mbit, 3) if isinstance(one.link, Goodput) else None,
        "running": report and report.running,
        "waiting": report and report.waiting,
        "slots": report and report.slots,
        "cached_blocks": one.cache_looks[-1].held[0] if one.cache_looks else None,
    }


def _redis_line(facts: Facts) -> str:
    redis = facts.redis
    if isinstance(redis, RedisAway):
        return f"redis: {redis.why}"
    limit = f"of {redis.max_bytes / 1e6:.1f} MB" if redis.max_bytes else "without limit"
    memory = f"{redis.used_bytes / 1e6:.1f} MB {limit}, {redis.eviction_policy}"
    return f"redis: {redis.name}, ping {redis.ping_s * 1000:.0f} ms, {memory}"


def _gateway_line(facts: Facts) -> str:
    match facts.gateway:
        case GatewayFacts(url, missing):
            return f"gateway: {url}, " + (f"not ready, missing {', '.join(missing)}" if missing else "ready")
        case GatewayAway(url, why):
            return f"gateway: {url}: {why}"
    return "gateway: not asked"


def _instances(instances: Sequence[InstanceFacts]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name in ("instance", "role", "site", "address"):
        table.add_column(name, overflow="fold")
    for name in ("RTT ms", "clock s", "Mbit/s", "running", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in instances:
        table.add_row(*_cells(one))
    return table


def _cells(one: InstanceFacts) -> Iterator[str]:
    registration, found = one.registration, one.found
    yield from (registration.instance.id, registration.role.value, registration.site, registration.address)
    if isinstance(found, Report):
        yield from (f"{found.round_trip_s * 1000:.0f}", f"{found.clock_offset_s:+.3f}")
    else:
        yield from (_UNKNOWN, _UNKNOWN)
    match one.link:
        case Goodput() as line:
            yield f"{line.mbit:.1f}"
        case Unmeasured() | None:
            yield _UNKNOWN
    yield f"{found.running} of {found.slots}" if isinstance(found, Report) else _UNKNOWN
    yield str(one.cache_looks[-1].held[0]) if one.cache_looks else _UNKNOWN


def _summary(findings: Sequence[Finding]) -> str:
    faults = sum(finding.severity is Severity.FAULT for finding in findings)
    warnings = len(findings) - faults
    if not findings:
        return "no faults found"
    return f"{_count(faults, 'fault')}, {_count(warnings, 'warning')}; docs/doctor.md has more on each"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
