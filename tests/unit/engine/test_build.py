import subprocess
import sys
from pathlib import Path

import pytest

from pdd.engine.base import EngineFault
from pdd.engine.build import build_engine
from pdd.engine.config import EngineSettings
from pdd.engine.sim.digest import Noise
from pdd.engine.sim.reference import continuation
from pdd.sampling import SamplingParams
from tests.engine_contract.observer import observe


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PDD_ENGINE": "llama", "PDD_SLOTS": "3", "PDD_MODEL_DIR": "models/x", "PDD_SIM_PROFILE": "gpu-a"}.items():
        monkeypatch.setenv(name, value)
    settings = EngineSettings()
    assert (settings.engine, settings.slots, settings.model_dir, settings.sim_profile) == ("llama", 3, Path("models/x"), "gpu-a")


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (EngineSettings(engine="sim"), 8192),
        (EngineSettings(engine="llama"), 4096),
        (EngineSettings(context_tokens=100), 100),
    ],
)
def test_the_context_has_a_default_for_each_engine(settings: EngineSettings, tokens: int) -> None:
    assert settings.context == tokens


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (EngineSettings(engine="sim"), 256),
        (EngineSettings(engine="llama"), 32),
        (EngineSettings(engine="llama", extend_tokens=5), 5),
    ],
)
def test_extends_have_a_default_budget_for_each_engine(settings: EngineSettings, tokens: int) -> None:
    assert settings.extend == tokens


def test_a_sim_is_built_as_set() -> None:
    engine = build_engine(
        EngineSettings(slots=3, context_tokens=512, block_tokens=32, page_tokens=64, device_dtype="f32", sim_profile="instant")
    )
    assert (engine.capabilities.slots, engine.capabilities.context_tokens) == (3, 512)
    assert (engine.layout.block_tokens, engine.layout.page_tokens, engine.layout.device_dtype) == (32, 64, "f32")


async def test_a_sim_is_as_noisy_as_set() -> None:
    prompt, noise = [1, 2, 3], Noise(0.3, seed=5)
    engine = build_engine(EngineSettings(sim_profile="instant", sim_logit_noise=0.3, sim_noise_seed=5))
    async with engine, observe(engine) as observer:
        sampling = SamplingParams(max_tokens=60, seed=0, temperature=0.0, ignore_eos=True)
        found = await observer.plain(prompt, sampling)
    assert found == continuation(prompt, 60, ignore_eos=True, noise=noise)
    assert found != continuation(prompt, 60, ignore_eos=True)


async def test_extends_keep_to_the_budget_that_is_set() -> None:
    engine = build_engine(EngineSettings(sim_profile="instant", extend_tokens=10))
    async with engine, observe(engine) as observer:
        seq = observer.new()
        engine.open(seq, [1], SamplingParams(max_tokens=100, seed=0), None)
        engine.extend(seq, 0, [1] * 45, then_decode=False)
        assert (await observer.extended(seq)).computed_tokens == 46
        assert observer.steps == 5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (EngineSettings(sim_profile="abacus"), "PDD_SIM_PROFILE=abacus: use one of instant, cpu-tiny"),
        (EngineSettings(sim_model="huge"), "PDD_SIM_MODEL=huge: use one of tiny"),
        (EngineSettings(chunk_tokens=600), "PDD_CHUNK_TOKENS and PDD_STEP_TOKENS"),
        (EngineSettings(engine="llama"), "PDD_MODEL_DIR is not set"),
    ],
)
def test_settings_that_name_what_is_not_there_say_what_is(settings: EngineSettings, says: str) -> None:
    with pytest.raises(EngineFault, match=says):
        build_engine(settings)


async def test_a_sim_that_does_not_fit_its_device_is_refused_at_entry() -> None:
    with pytest.raises(EngineFault, match="lower PDD_SLOTS"):
        async with build_engine(EngineSettings(slots=256, context_tokens=131072, sim_profile="gpu-a", sim_model="dense-8b")):
            pass


def test_a_sim_imports_no_model_of_another_engine() -> None:
    program = (
        "import sys; from pdd.engine.build import build_engine; from pdd.engine.config import EngineSettings\n"
        "build_engine(EngineSettings(engine='sim'))\n"
        "sys.exit(any(name.startswith(('pdd.engine.llama', 'llama_cpp')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
