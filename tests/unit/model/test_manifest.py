import json
from pathlib import Path

import pytest

from pdd.model.load import load_card
from pdd.model.manifest import File, Manifest, ModelFilesError, Source, describe, read_manifest, verify, write_manifest


def manifest_of(directory: Path) -> Manifest:
    for name in ("weights.gguf", "tokenizer.json", "template.jinja"):
        (directory / name).write_text(name)
    return Manifest(
        name="m",
        weights=describe(directory / "weights.gguf"),
        tokenizer=describe(directory / "tokenizer.json"),
        chat_template=describe(directory / "template.jinja"),
        bos_token="",
        eos_token="e",
        eos_ids=(1, 2),
        context_tokens=10,
        vocabulary=5,
        layers=1,
        kv_heads=1,
        head_size=2,
        source=Source(package="p"),
    )


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "template.jinja",
        "tokenizer.json",
        "weights.gguf",
    ]


def test_a_missing_model_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="pdd model fetch"):
        load_card("llama", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"format": 2}, "format"), ({"eos_ids": []}, "eos_ids"), ({"layers": 0}, "layers"), ({"surprise": 1}, "surprise")],
)
def test_a_manifest_of_another_form_names_the_field(tmp_path: Path, change: dict[str, object], named: str) -> None:
    data = json.loads(manifest_of(tmp_path).model_dump_json()) | change
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ModelFilesError, match=named):
        read_manifest(tmp_path)


def test_a_manifest_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ModelFilesError, match="not a manifest"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "a\\b", ""])
def test_files_lie_in_the_directory_itself(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        File(name=name, sha256="0" * 64, size=1)


def test_a_changed_file_is_refused_by_name(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("tokenizer.jsoN")  # as long as before
    verify(tmp_path, manifest.weights)
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is not what its manifest says"):
        verify(tmp_path, manifest.tokenizer)


def test_an_unknown_engine_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="abacus"):
        load_card("abacus", tmp_path)
