"""Facts of a deployment in which all is well, to be changed by a test in one place."""

from __future__ import annotations

from dataclasses import replace

from pdd.catalog.base import Registration, Role
from pdd.catalog.prefixes import CacheState
from pdd.doctor.facts import CacheLook, Claims, Facts, GatewayFacts, Goodput, InstanceFacts, RedisFacts, Report
from pdd.identity import Instance
from pdd.kv.layout import DENSE_F16, KvLayout

LAYOUT = KvLayout("model", "tokenizer", 30, 3, 64, 16, (DENSE_F16,), 16 * 23040, "llama")
CLAIMS = Claims(50.0, "model", "tokenizer", (Role.PREFILL, Role.MAIN))
STATE = CacheState(7, 3, 0xABC)
AGREEING = CacheLook(STATE, (3, 0xABC), (3, 0xABC))


def registration(role: Role, layout: KvLayout = LAYOUT, incarnation: int = 1) -> Registration:
    site = "b" if role is Role.MAIN else "a"
    cached = None if role is Role.RELAY else STATE
    instance = Instance(f"{role.value}-0", incarnation)
    return Registration(instance, role, site, f"{role.value}:50051", layout, 4096, 8, cached=cached)


def instance(role: Role, layout: KvLayout = LAYOUT) -> InstanceFacts:
    one = registration(role, layout)
    report = Report(
        instance=one.instance,
        role=role.value,
        layout=layout,
        running=0,
        waiting=0,
        slots=8,
        round_trip_s=0.04,
        clock_offset_s=0.001,
    )
    return InstanceFacts(
        one,
        report,
        Goodput(6e6, 9_000_000) if role is Role.MAIN else None,
        () if role is Role.RELAY else (AGREEING,),
    )


def facts(*instances: InstanceFacts) -> Facts:
    """Of one instance of each role, those given in place of the healthy ones."""
    given = {one.registration.role: one for one in instances}
    found = tuple(given.get(role) or instance(role) for role in Role)
    look = tuple(one.registration for one in found)
    return Facts(
        redis=RedisFacts("redis://redis:6379/0", 0.001, 1_000_000, 0, "noeviction", 0),
        looks=(look, look),
        instances=found,
        gateway=GatewayFacts("http://127.0.0.1:8000"),
    )


def reporting(role: Role, /, **changes: object) -> InstanceFacts:
    """An instance whose report is changed so."""
    one = instance(role)
    assert isinstance(one.found, Report)
    return replace(one, found=replace(one.found, **changes))  # type: ignore[arg-type]
