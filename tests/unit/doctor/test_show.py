from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from pdd.catalog.base import Role
from pdd.doctor.checks import examine
from pdd.doctor.facts import Facts, GatewayAway, InstanceFacts, RedisAway, Silence, Unreached
from pdd.doctor.findings import Check
from pdd.doctor.show import as_json, draw
from tests.unit.doctor.facts import CLAIMS, facts, registration

DOCS = Path(__file__).parents[3] / "docs" / "doctor.md"


def drawn(found: Facts) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(draw(found, examine(found, CLAIMS)))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_a_deployment_in_which_all_is_well_is_shown_with_its_figures() -> None:
    text = drawn(facts())
    for shown in ("prefill-0", "relay-0", "main:50051", "48.0", "ready", "no faults found"):
        assert shown in text


def test_a_fault_is_shown_with_what_to_do() -> None:
    relay = InstanceFacts(registration(Role.RELAY), Unreached(Silence.NOBODY, "Connection refused"))
    text = drawn(facts(relay))
    assert "fault wrong_address: relay-0" in text
    assert "  do: correct its PDD_ADVERTISE" in text
    assert "1 fault, 0 warnings" in text


def test_a_deployment_without_redis_and_gateway_can_be_shown() -> None:
    text = drawn(Facts(RedisAway("no answer"), gateway=GatewayAway("http://127.0.0.1:8000", "refused")))
    assert "2 faults, 0 warnings" in text


def test_json_has_the_findings_and_null_for_what_is_not_known() -> None:
    found = facts(InstanceFacts(registration(Role.MAIN), Unreached(Silence.NO_ANSWER, "no answer in 3 s")))
    told = orjson.loads(orjson.dumps(as_json(found, examine(found, CLAIMS))))
    assert told["ok"] is False
    assert [(finding["check"], finding["subject"]) for finding in told["findings"]] == [("unreachable", "main-0")]
    main = next(one for one in told["instances"] if one["id"] == "main-0")
    assert main["goodput_mbit"] is None
    assert main["address"] == "main:50051"
    assert as_json(facts(), ())["ok"] is True


@pytest.mark.parametrize("check", list(Check), ids=lambda check: check.value)
def test_every_finding_is_documented(check: Check) -> None:
    assert f"| `{check.value}` |" in DOCS.read_text()
