"""What a model directory holds: `manifest.json`, written by `model.fetch`, read by `model.load` and the llama engine.

The manifest is written last, so that a directory with one is whole. Its digests are what instances compare before they exchange
KV. Reads and checks files; changes none but `manifest.json` itself.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE_NAME = "manifest.json"


class ModelFilesError(Exception):
    """A model directory is missing, damaged or not usable. The text says what to run."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Part):
    """One file of the directory."""

    name: str = Field(pattern=r"^[^/\\]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)  # bytes


class Source(_Part):
    """Where the weights came from: a package and its version, or the name of a file given by hand."""

    package: str
    version: str = ""


class Manifest(_Part):
    format: Literal[1] = 1
    name: str = Field(min_length=1)  # the id in /v1/models
    weights: File
    tokenizer: File
    chat_template: File
    bos_token: str
    eos_token: str
    eos_ids: tuple[int, ...] = Field(min_length=1, max_length=16)
    context_tokens: int = Field(ge=1)
    vocabulary: int = Field(ge=1)  # ids, which is also the width of the logits
    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)  # elements, of a key as of a value
    source: Source

    @property
    def files(self) -> tuple[File, ...]:
        return (self.weights, self.tokenizer, self.chat_template)


def read_manifest(model_dir: Path) -> Manifest:
    """Raises ModelFilesError where there is none or it does not parse."""
    path = model_dir / FILE_NAME
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFilesError(f"no model in {model_dir}: run `pdd model fetch`, or point PDD_MODEL_DIR at one") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
        raise ModelFilesError(f"{path} is not a manifest this version reads ({problems}): run `pdd model fetch` again") from None


def write_manifest(model_dir: Path, manifest: Manifest) -> None:
    """Put it in place in one step: a reader sees the old one or the new one."""
    draft = model_dir / f".{FILE_NAME}.{os.getpid()}"
    draft.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    draft.replace(model_dir / FILE_NAME)


def describe(path: Path) -> File:
    """Name, digest and size of a file as it is now."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(name=path.name, sha256=digest, size=path.stat().st_size)


def verify(model_dir: Path, file: File) -> Path:
    """The path of a file whose content is what the manifest says. Reads all of it. Raises ModelFilesError."""
    path = model_dir / file.name
    try:
        found = describe(path)
    except FileNotFoundError:
        raise ModelFilesError(f"{path} is missing: run `pdd model fetch`") from None
    if found != file:
        raise ModelFilesError(
            f"{path} is not what its manifest says (sha256 {found.sha256[:16]}…, {found.size} bytes; "
            f"expected {file.sha256[:16]}…, {file.size} bytes): run `pdd model fetch`"
        )
    return path
