"""What is wrong with a deployment, and what to do about it. Pure: facts and claims in, findings out.

Called by the command line. A finding is given once, at the nearest cause: of an instance that can't be reached nothing else is
said, and of a Redis that is away nothing but that.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdd.catalog.base import Registration
from pdd.doctor.cache_checks import cache_findings
from pdd.doctor.facts import (
    Claims,
    Facts,
    GatewayAway,
    GatewayFacts,
    Goodput,
    InstanceFacts,
    RedisAway,
    RedisFacts,
    Report,
    Unmeasured,
)
from pdd.doctor.findings import Check, Finding, Severity, fault, warning
from pdd.doctor.identity_checks import address_findings, registry_findings
from pdd.doctor.layout_checks import layout_findings

MAX_CLOCK_OFFSET_S = 1.0
LINK_FACTOR = 4.0  # between what a line is said and found to carry; a busy line gives a probe half of itself or less
SLOW_PING_S = 0.1
FULL_SHARE = 0.9


def examine(facts: Facts, claims: Claims) -> tuple[Finding, ...]:
    """All findings, faults first."""
    found = [*_redis_findings(facts.redis), *_gateway_findings(facts.gateway)]
    if not isinstance(facts.redis, RedisAway):
        found += [*registry_findings(facts, claims), *layout_findings(facts, claims)]
        for one in facts.instances:
            found += _instance_findings(one, facts, claims)
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.FAULT))


def _instance_findings(one: InstanceFacts, facts: Facts, claims: Claims) -> Iterator[Finding]:
    if one.registration.instance not in {other.instance for other in facts.present}:
        return  # it has left meanwhile; the registry's findings say so
    wrong = tuple(address_findings(one, facts.instances))
    yield from wrong
    if wrong or not isinstance(one.found, Report):
        return
    yield from _clock_findings(one.registration, one.found)
    yield from _link_findings(one, claims)
    yield from cache_findings(one)


def _redis_findings(redis: RedisFacts | RedisAway) -> Iterator[Finding]:
    if isinstance(redis, RedisAway):
        yield fault(
            Check.REDIS_AWAY,
            "redis",
            redis.why,
            "start Redis, or correct PDD_REDIS_URL. Instances announce themselves again within 3 s. No instance was checked: "
            "run the doctor again then",
        )
        return
    if redis.ping_s > SLOW_PING_S:
        what = f"a ping of {redis.name} takes {redis.ping_s * 1000:.0f} ms"
        yield warning(Check.REDIS_SLOW, "redis", what, "put Redis in the site of gateway and prefill, and look at its load")
    if redis.max_bytes and redis.eviction_policy != "noeviction":
        yield warning(
            Check.REDIS_EVICTS,
            "redis",
            f"{redis.name} may evict keys (maxmemory-policy {redis.eviction_policy}; {redis.evicted_keys} evicted so far): "
            "then prefix hits are missed",
            "set maxmemory-policy noeviction, and give this mesh a Redis of its own",
        )
    if redis.max_bytes and redis.used_bytes > FULL_SHARE * redis.max_bytes:
        what = f"{redis.name} uses {redis.used_bytes} of its {redis.max_bytes} bytes"
        yield warning(Check.REDIS_FULL, "redis", what, "raise maxmemory: where it is full, nothing can be published")


def _clock_findings(registration: Registration, report: Report) -> Iterator[Finding]:
    # The middle of the round trip may be off by half of it.
    surely_s = abs(report.clock_offset_s) - report.round_trip_s / 2
    if surely_s > MAX_CLOCK_OFFSET_S:
        direction = "ahead of" if report.clock_offset_s > 0 else "behind"
        yield fault(
            Check.CLOCK_SKEW,
            registration.instance.id,
            f"its wall clock is {abs(report.clock_offset_s):.1f} s {direction} this machine's: their logs and traces can't be "
            "put in order. Answers are not affected",
            f"set the clocks of both machines by NTP (is chronyd or systemd-timesyncd running in site {registration.site}?)",
        )


def _link_findings(one: InstanceFacts, claims: Claims) -> Iterator[Finding]:
    subject, claimed = one.registration.instance.id, claims.wan_mbit
    if isinstance(one.link, Unmeasured):
        what = f"the line to it was not measured: {one.link.why}"
        yield warning(Check.LINK_UNMEASURED, subject, what, "run the doctor again in a few seconds")
    if not isinstance(one.link, Goodput):
        return
    measured = one.link.mbit
    figures = f"the line to it carries {measured:.1f} Mbit/s, and PDD_WAN_MBIT says {claimed:g}"
    if measured < claimed / LINK_FACTOR:
        yield fault(
            Check.LINK_SLOW,
            subject,
            f"{figures}: requests go `direct` where they would need a relay, and stall",
            "find out what slows the line down or fills it (the emulator: GET /link and /counters on wan's control API); "
            f"where it is right as it is, set the gateway's PDD_WAN_MBIT to {max(measured, 0.1):.1f}",
        )
    elif measured > claimed * LINK_FACTOR:
        yield warning(
            Check.LINK_FAST,
            subject,
            f"{figures}: requests take a relay without need until the line has been measured",
            f"set the gateway's PDD_WAN_MBIT to {measured:.1f}",
        )


def _gateway_findings(gateway: GatewayFacts | GatewayAway | None) -> Iterator[Finding]:
    match gateway:
        case GatewayAway(url, why):
            yield fault(
                Check.GATEWAY_AWAY,
                "gateway",
                f"no gateway answers at {url}: {why}",
                "start it, give its address in PDD_HTTP, or leave it out with --no-gateway",
            )
        case GatewayFacts(missing=missing, degraded=degraded):
            if missing:
                yield fault(
                    Check.GATEWAY_NOT_READY,
                    "gateway",
                    f"it serves no requests: no stream to any {' and no stream to any '.join(missing)}",
                    "put the other faults right; where there are none, look for `stream lost` in its log",
                )
            for reason in degraded:
                if "no relay is connected" not in reason:  # role_missing says so
                    yield warning(
                        Check.GATEWAY_DEGRADED,
                        "gateway",
                        f"degraded: {reason}",
                        "it mends itself; if it stays for a minute, see *Degraded* in docs/operations.md",
                    )
