"""The tokenizer made from a GGUF's vocabulary gives the ids that llama.cpp's own gives.

Other pre-tokenizers are tried on the same vocabulary, in a copy of the file's metadata that names them and has some more tokens,
on which they differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pdd.model.card import ModelCard
from pdd.model.gguf_tokenizer import GgufModel, build_tokenizer, read_gguf
from pdd.model.manifest import read_manifest
from tests.real.engine import texts

pytestmark = pytest.mark.real

Encode = Callable[[str], list[int]]

ALPHABETS = {
    "ascii": [chr(c) for c in range(0x20, 0x7F)],
    "words": [
        "a",
        "the",
        "I",
        "'s",
        "'LL",
        "don't",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        ".",
        "12",
        "3",
        "É",
        "ß",
        "안녕",
        "ไทย",
        "🙂",
    ],
    "latin": [chr(c) for c in range(0x20, 0x250)],
    "anything": [chr(c) for c in (*range(0x20, 0xD800, 7), *range(0xE000, 0x11000, 7), *range(0x1F300, 0x1FA00))],
    "whitespace": list(" \t\n\r\f\v\u00a0\u1680\u2003\u2028\u3000\u200bx1."),
    "numerals": list("0123456789٠٣৭०๒Ⅷ½²①一,.- "),
}


@contextmanager
def llama_cpp_tokenizer(gguf: Path) -> Iterator[Encode]:
    import llama_cpp.llama_cpp as llama

    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(str(gguf).encode(), params)
    assert model, gguf
    vocabulary = llama.llama_model_get_vocab(model)

    def encode(text: str) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        count = llama.llama_tokenize(vocabulary, data, len(data), ids, room, False, True)
        assert count >= 0
        return list(ids[:count])

    try:
        yield encode
    finally:
        llama.llama_model_free(model)


UNREACHABLE = "zqxj"  # a token that no merge leads to


def widened(model: GgufModel) -> GgufModel:
    """With a token for each number of two and three digits, and one that only a look-up of whole words finds."""
    pairs = [f"{n:02}" for n in range(100)]
    triples = [f"{n:03}" for n in range(1000)]
    tokens = (*model.tokens, *pairs, *triples, UNREACHABLE)
    merges = (*model.merges, *(f"{n[0]} {n[1]}" for n in pairs), *(f"{n[:2]} {n[2]}" for n in triples))
    kinds = (*model.token_types, *[1] * (len(tokens) - len(model.tokens)))
    return replace(model, tokens=tokens, merges=merges, token_types=kinds)


def write_vocabulary(model: GgufModel, path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.pre_tokenizer)
    writer.add_token_list(model.tokens)
    writer.add_token_types(model.token_types)
    writer.add_token_merges(model.merges)
    writer.add_eos_token_id(model.eos_ids[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def samples() -> Iterator[str]:
    written = (
        texts.PROSE,
        texts.CODE,
        texts.DIGITS,
        texts.EMOJI,
        texts.KOREAN,
        texts.THAI,
        texts.MIXED,
        texts.SPACES,
        texts.SPECIALS,
        UNREACHABLE,
    )
    yield from written
    for text in written:  # cut anywhere, a text begins and ends in the middle of things
        yield from (text[start : start + 60] for start in range(0, len(text), 13))
    random = np.random.Generator(np.random.Philox(key=20))
    for alphabet in ALPHABETS.values():
        for length in range(1, 120):
            yield "".join(alphabet[i] for i in random.integers(0, len(alphabet), length))


def assert_equal(ours: Encode, theirs: Encode) -> None:
    for text in samples():
        expected = theirs(text)
        assert ours(text) == expected, repr(text)


def test_the_card_tokenises_as_llama_cpp_does(model_dir: Path, card: ModelCard) -> None:
    with llama_cpp_tokenizer(model_dir / read_manifest(model_dir).weights.name) as theirs:
        assert_equal(card.encode, theirs)


@pytest.fixture(scope="module")
def wide(model_dir: Path) -> GgufModel:
    pytest.importorskip("gguf")
    return widened(read_gguf(model_dir / read_manifest(model_dir).weights.name))


@pytest.mark.parametrize("pre_tokenizer", ["gpt-2", "starcoder", "llama-bpe", "qwen2"])
def test_other_pre_tokenizers_split_as_llama_cpp_does(wide: GgufModel, tmp_path: Path, pre_tokenizer: str) -> None:
    model = replace(wide, pre_tokenizer=pre_tokenizer)
    write_vocabulary(model, tmp_path / "vocabulary.gguf")
    tokenizer = build_tokenizer(model)
    with llama_cpp_tokenizer(tmp_path / "vocabulary.gguf") as theirs:
        assert_equal(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), theirs)
