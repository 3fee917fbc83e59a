"""docs/operations.md names every setting, error code and metric, and none that does not exist."""

import re
from pathlib import Path

import prometheus_client
import pytest
from pydantic_settings import BaseSettings

from gateway.config import GatewaySettings
from gateway.generation import MeshErrorCode
from gateway.mesh.settings import MeshSettings
from gateway.metrics import GatewayMetrics, MeshMetrics
from pdd.engine.config import EngineSettings
from pdd.v1 import kv_pb2
from services.main.config import MainSettings
from services.prefill.config import PrefillSettings
from services.relay.config import RelaySettings
from wan.config import WanSettings

TEXT = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
SETTINGS: tuple[type[BaseSettings], ...] = (
    EngineSettings,
    GatewaySettings,
    MainSettings,
    MeshSettings,
    PrefillSettings,
    RelaySettings,
    WanSettings,
)


def variables() -> set[str]:
    found = set()
    for settings in SETTINGS:
        prefix = settings.model_config.get("env_prefix", "")
        found |= {f"{prefix}{name}".upper() for name in settings.model_fields}
    return found - {"PDD_WAN_LOG_LEVEL"}  # another name of PDD_LOG_LEVEL


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"PDD_[A-Z_]+[A-Z]", TEXT))
    assert variables() - documented == set()
    assert documented - variables() == set()


@pytest.mark.parametrize("code", list(MeshErrorCode), ids=lambda code: code.value)
def test_every_error_code_is_documented(code: MeshErrorCode) -> None:
    assert f"| `{code.value}` |" in TEXT


def test_every_reason_to_refuse_a_transfer_is_documented() -> None:
    prefix = "REFUSAL_REASON_"
    reasons = {name.removeprefix(prefix) for name in kv_pb2.RefusalReason.keys()} - {"UNSPECIFIED"}
    assert {reason for reason in reasons if f"`{reason}`" not in TEXT} == set()


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    registry = prometheus_client.CollectorRegistry()
    GatewayMetrics(registry)
    MeshMetrics(registry)
    metrics = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}
    assert set(re.findall(r"`(pdd_[a-z_]+)`", TEXT)) == metrics
