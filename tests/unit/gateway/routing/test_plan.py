from gateway.handoff.machine import Pipeline
from gateway.routing.plan import Plan, ReasonCode
from tests.unit.gateway.instances import registration
from tests.unit.gateway.routing.sight import MD, RLD, P


def plan(reason: str = "main has it", relay: str = "r-0") -> Plan:
    prefill, main = registration(P, "p-0"), registration(MD, "m-0")
    return Plan(Pipeline.RELAY, prefill, registration(RLD, relay), main, ReasonCode.LOW_HIT, reason, 32, 2048, 0.25, 48, 16, 9)


def test_the_header_says_what_was_decided_and_why() -> None:
    assert plan().header() == (
        "pipeline=relay; code=low_hit; prefill=p-0; relay=r-0; main=m-0; prefill_hit_tokens=48; main_hit_tokens=16; "
        "missing_tokens=32; missing_bytes=2048; transfer_ms=250; reason=main has it"
    )


def test_nothing_in_the_header_can_break_it() -> None:
    header = plan("a; b=c\r\nx: y", "rélais").header()
    pairs = dict(pair.split("=", 1) for pair in header.split("; "))
    assert header.isascii()
    assert header.isprintable()
    assert (pairs["relay"], pairs["reason"]) == ("r?lais", "a? b=c??x: y")


def test_aligned_is_what_both_caches_have() -> None:
    assert plan().aligned_hit_tokens == 16
