"""What the llama engine refuses, and that its other sequences go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd.engine.base import EngineFault, Failed, KvSource
from pdd.engine.llama.binding import ContextSettings
from pdd.engine.llama.model import LlamaModel
from pdd.model.card import ModelCard
from pdd.model.manifest import FILE_NAME, read_manifest, write_manifest
from tests.engine_contract.case import greedy
from tests.real.engine.engines import llama
from tests.real.engine.texts import PROSE

pytestmark = pytest.mark.real

SMALL = ContextSettings(context_tokens=256, sequences=2, batch_tokens=64)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(lambda block: block[:-1], r"block 1 has \d+ bytes", id="short"),
        pytest.param(lambda block: b"\xff" * len(block), "not finite", id="f16 NaNs"),
    ],
)
async def test_a_bad_block_fails_its_own_sequence_alone(
    model_dir: Path, card: ModelCard, damage: Callable[[bytes], bytes], named: str
) -> None:
    prompt = card.encode(PROSE)[:40]
    async with llama(model_dir, 2, 256) as observer:
        plain = await observer.plain(prompt, greedy(8))
        kv, _ = await observer.prefilled(prompt, greedy(8))
        bad = KvSource((kv.payloads[0], damage(bytes(kv.payloads[1]))))
        broken = observer.decode(prompt, greedy(8), bad, plain[:1])
        neighbour = observer.decode(prompt, greedy(8), kv, plain[:1])
        closing = await observer.closing(broken)
        assert isinstance(closing, Failed)
        with pytest.raises(EngineFault, match=named):
            raise closing.fault
        await observer.closing(neighbour)
        assert observer.seen[neighbour].ids == plain[1:]
        assert await observer.plain(prompt, greedy(8)) == plain


def test_a_missing_model_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(EngineFault, match="pdd model fetch"):
        LlamaModel(tmp_path, SMALL)


def test_more_context_than_the_model_has_is_refused(model_dir: Path) -> None:
    with pytest.raises(EngineFault, match="PDD_CONTEXT_TOKENS is 1000000"):
        LlamaModel(model_dir, ContextSettings(context_tokens=1_000_000, sequences=1, batch_tokens=64))


@pytest.mark.parametrize(("field", "value", "named"), [("layers", 29, "29"), ("head_size", 32, "bytes")])
def test_a_manifest_that_belies_the_weights_is_refused_at_load(
    model_dir: Path, tmp_path: Path, field: str, value: int, named: str
) -> None:
    manifest = read_manifest(model_dir)
    (tmp_path / manifest.weights.name).symlink_to((model_dir / manifest.weights.name).resolve())
    write_manifest(tmp_path, manifest.model_copy(update={field: value}))
    model = LlamaModel(tmp_path, SMALL)
    try:
        with pytest.raises(EngineFault, match=named):
            model.load()
    finally:
        model.close()


def test_weights_that_are_not_the_manifests_are_refused_at_load(model_dir: Path, tmp_path: Path) -> None:
    shutil.copyfile(model_dir / FILE_NAME, tmp_path / FILE_NAME)
    (tmp_path / read_manifest(model_dir).weights.name).write_bytes(b"something else")
    with pytest.raises(EngineFault, match="not what its manifest says"):
        LlamaModel(tmp_path, SMALL).load()


@pytest.mark.parametrize(("ubatch_tokens", "threads", "exact"), [(32, 1, True), (512, 1, False), (32, 2, False)])
def test_only_the_exact_settings_declare_exact_extend(model_dir: Path, ubatch_tokens: int, threads: int, exact: bool) -> None:
    model = LlamaModel(model_dir, ContextSettings(256, 2, 64, ubatch_tokens, threads))
    assert model.capabilities.exact_extend is exact
