import pytest
from pydantic import ValidationError

from wan.config import WanSettings
from wan.link import LinkSettings


def test_the_environment_sets_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_WAN_RATE_MBIT", "20")
    monkeypatch.setenv("PDD_WAN_RTT_MS", "80")
    assert WanSettings().link() == LinkSettings(rate_mbit=20, rtt_ms=80)


def test_half_a_registry_is_refused_and_both_variables_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_WAN_REGISTRY_TARGET", "redis:6379")
    with pytest.raises(ValidationError, match=r"PDD_WAN_REGISTRY_LISTEN and PDD_WAN_REGISTRY_TARGET"):
        WanSettings()
