from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config import GatewaySettings


def test_the_defaults_serve_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PDD_HTTP", "PDD_LISTEN", "PDD_ENGINE", "PDD_MODEL_DIR", "PDD_MAX_BODY_BYTES"):
        monkeypatch.delenv(name, raising=False)
    settings = GatewaySettings()
    assert (settings.http, settings.listen, settings.engine) == ("127.0.0.1:8000", "127.0.0.1:50050", "sim")
    assert settings.max_body_bytes == 4 << 20


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_HTTP", "0.0.0.0:80")
    monkeypatch.setenv("PDD_ENGINE", "llama")
    monkeypatch.setenv("PDD_MODEL_DIR", "/models")
    monkeypatch.setenv("PDD_SLOTS", "8")  # another service's
    settings = GatewaySettings()
    assert (settings.http, settings.engine, settings.model_dir) == ("0.0.0.0:80", "llama", Path("/models"))


@pytest.mark.parametrize(
    ("name", "value"), [("PDD_ENGINE", "vllm"), ("PDD_WORKERS", "0"), ("PDD_WRITE_DEADLINE_S", "0"), ("PDD_MAX_BODY_BYTES", "x")]
)
def test_a_wrong_value_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name.removeprefix("PDD_").lower()):
        GatewaySettings()
