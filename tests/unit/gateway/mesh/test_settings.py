import pytest
from pydantic import ValidationError

from gateway.handoff.pace import Pace
from gateway.mesh.settings import HandoffChoice, MeshSettings, PipelineChoice


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIPELINE": "direct", "HANDOFF": "one_shot", "ITL_TARGET_MS": "80", "MAX_ROUNDS": "3"}.items():
        monkeypatch.setenv(f"PDD_{name}", value)
    settings = MeshSettings()
    assert (settings.pipeline, settings.handoff) == (PipelineChoice.DIRECT, HandoffChoice.ONE_SHOT)
    policy = settings.policy(Pace())
    assert (policy.itl_target_s, policy.max_rounds, policy.prior) == (0.08, 3, Pace())


@pytest.mark.parametrize(
    ("name", "value"),
    [("PDD_PIPELINE", "singular"), ("PDD_ITL_TARGET_MS", "0"), ("PDD_STALL_DEADLINE_S", "-1"), ("PDD_AGREEMENT_SAMPLE", "1.5")],
)
def test_settings_refuse_what_makes_no_sense(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        MeshSettings()
