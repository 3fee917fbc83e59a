"""docs/operations.md names every setting and error code, and none that does not exist. Metrics: see test_metrics.py."""

import enum
import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from gateway.config import GatewaySettings
from gateway.generation import MeshErrorCode
from gateway.mesh.settings import MeshSettings
from gateway.routing.plan import ReasonCode
from pdd.engine.config import EngineSettings
from pdd.tracing.settings import TraceSettings
from pdd.v1 import kv_pb2
from services.main.config import MainSettings
from services.prefill.config import PrefillSettings
from services.relay.config import RelaySettings
from wan.config import WanSettings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "operations.md").read_text()
WARNING = re.compile(r'log\.(?:warning|error)\(\s*"([^"]+)"')
SETTINGS: tuple[type[BaseSettings], ...] = (
    EngineSettings,
    GatewaySettings,
    MainSettings,
    MeshSettings,
    PrefillSettings,
    RelaySettings,
    TraceSettings,
    WanSettings,
)


def variables() -> set[str]:
    found = set()
    for settings in SETTINGS:
        prefix = settings.model_config.get("env_prefix", "")
        for name, field in settings.model_fields.items():
            alias = field.validation_alias  # a name of somebody else's
            found.add(alias if isinstance(alias, str) else f"{prefix}{name}".upper())
    return found - {"PDD_WAN_LOG_LEVEL"}  # another name of PDD_LOG_LEVEL


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"(?:PDD|OTEL)_[A-Z_]+[A-Z]", TEXT))
    assert variables() - documented == set()
    assert documented - variables() == set()


@pytest.mark.parametrize("settings", [EngineSettings, GatewaySettings, MeshSettings, TraceSettings, WanSettings])
def test_documented_defaults_are_the_real_ones(settings: type[BaseSettings]) -> None:
    rows = dict(re.findall(r"^\| `(PDD_\w+)`(?: ◆)? \| ([^|]*?) ?\|", TEXT, re.MULTILINE))
    shared = {"PDD_INSTANCE_ID", "PDD_LISTEN", "PDD_MODEL_DIR"}  # each process has its own
    for name, field in settings.model_fields.items():
        variable = f"{settings.model_config.get('env_prefix', '')}{name}".upper()
        if variable in rows and variable not in shared and field.default is not None:
            assert rows[variable] == written(field.default), variable


def written(default: object) -> str:
    """A default as it is typed into the environment."""
    match default:
        case bool():
            return str(default).lower()
        case enum.Enum():
            return str(default.value)
        case float():
            return f"{default:g}"
    return str(default)


@pytest.mark.parametrize("code", list(MeshErrorCode), ids=lambda code: code.value)
def test_every_error_code_is_documented(code: MeshErrorCode) -> None:
    assert f"| `{code.value}` |" in TEXT


def test_every_reason_to_refuse_a_transfer_is_documented() -> None:
    prefix = "REFUSAL_REASON_"
    reasons = {value.name.removeprefix(prefix) for value in kv_pb2.RefusalReason.DESCRIPTOR.values} - {"UNSPECIFIED"}
    assert {reason for reason in reasons if f"`{reason}`" not in TEXT} == set()


@pytest.mark.parametrize("code", list(ReasonCode), ids=lambda code: code.value)
def test_every_reason_of_a_plan_is_documented(code: ReasonCode) -> None:
    assert f"| `{code.value}` |" in TEXT


def test_what_is_logged_of_the_prefix_catalog_is_documented() -> None:
    logged = [line for path in (ROOT / "pdd" / "catalog").glob("*.py") for line in re.findall(WARNING, path.read_text())]
    lines = {line for line in logged if "catalog" in line}
    assert len(lines) >= 8
    assert {line for line in lines if not any(part in TEXT for part in (f"`{line}`", f"`{line.partition(';')[0]}`"))} == set()
