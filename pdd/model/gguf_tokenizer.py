"""What a GGUF file says of its model, and the `tokenizers` tokenizer made from its vocabulary.

Called by `model.fetch` alone, so that everybody else tokenises without the `gguf` package and without an engine. Reads the file,
writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pdd.model.manifest import ModelFilesError

# Token types of the GGUF specification.
_CONTROL = 3
_USER_DEFINED = 4

_BYTES_AFTER_GPT2_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _BYTES])


_DIGITS_APART = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTES_AFTER_GPT2_SPLIT])
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# By the value of `tokenizer.ggml.pre`. tests/real/engine holds each against llama.cpp's own.
_PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _BYTES_AFTER_GPT2_SPLIT,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "llama-bpe": _split(_WORDS % "{1,3}"),
    "qwen2": _split(_WORDS % ""),
}
# Pre-tokenizers whose models take a word that is in the vocabulary whole, whatever the merges say.
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file's metadata, as far as the mesh needs it."""

    context_tokens: int
    layers: int
    kv_heads: int
    head_size: int
    bos_token: str
    eos_token: str
    eos_ids: tuple[int, ...]
    chat_template: str
    pre_tokenizer: str
    bpe: bool
    tokens: tuple[str, ...] = field(repr=False)
    token_types: tuple[int, ...] = field(repr=False)
    merges: tuple[str, ...] = field(repr=False)


def read_gguf(path: Path) -> GgufModel:
    """Raises ModelFilesError where the file can't be read or lacks what the mesh needs."""
    get = _open(path)
    architecture = get("general.architecture")
    tokens = tuple(get("tokenizer.ggml.tokens"))
    eos = get("tokenizer.ggml.eos_token_id")
    bos = get("tokenizer.ggml.bos_token_id", None)
    end_of_turn = get("tokenizer.ggml.eot_token_id", eos)
    heads = get(f"{architecture}.attention.head_count")
    kv_heads = get(f"{architecture}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ModelFilesError(f"the layers of {path} differ in their heads: the llama engine can't cut its KV into blocks")
    return GgufModel(
        context_tokens=get(f"{architecture}.context_length"),
        layers=get(f"{architecture}.block_count"),
        kv_heads=kv_heads,
        head_size=get(f"{architecture}.attention.key_length", get(f"{architecture}.embedding_length") // heads),
        bos_token="" if bos is None else tokens[bos],
        eos_token=tokens[eos],
        eos_ids=tuple(dict.fromkeys((eos, end_of_turn))),
        chat_template=get("tokenizer.chat_template", ""),
        pre_tokenizer=get("tokenizer.ggml.pre", "default"),
        bpe=get("tokenizer.ggml.model") == "gpt2",
        tokens=tokens,
        token_types=tuple(get("tokenizer.ggml.token_type")),
        merges=tuple(get("tokenizer.ggml.merges", ())),
    )


def build_tokenizer(model: GgufModel) -> Tokenizer:
    """A byte-level BPE tokenizer equal to llama.cpp's own. Raises ModelFilesError for a kind not known here."""
    pre_tokenizer = _PRE_TOKENIZERS.get(model.pre_tokenizer)
    if not model.bpe or pre_tokenizer is None:
        raise ModelFilesError(
            f"no tokenizer can be made from this GGUF: its pre-tokenizer is {model.pre_tokenizer!r}, known are "
            f"{', '.join(_PRE_TOKENIZERS)}. Give a directory that has its tokenizer.json, with --tokenizer"
        )
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(model.tokens)},
            merges=[_pair(merge) for merge in model.merges],
            ignore_merges=model.pre_tokenizer in _WHOLE_WORDS_FIRST,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    # Not normalised and taken whole wherever they stand in a text, as llama.cpp does when it parses special tokens.
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(model.tokens, model.token_types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ", 1)
    return left, right


_REQUIRED: Any = object()


def _open(path: Path) -> Any:
    """A function from key (and default) to value; a missing key without a default raises ModelFilesError."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelFilesError("reading a GGUF file needs the package gguf: pip install 'pdd[llama]'") from None
    try:
        fields = GGUFReader(path).fields
    except (OSError, ValueError, LookupError) as error:  # what the reader raises depends on where the file breaks off
        raise ModelFilesError(f"{path} can't be read as GGUF, it may be cut short: {error}") from error

    def get(key: str, default: Any = _REQUIRED) -> Any:
        if key in fields:
            return fields[key].contents()
        if default is _REQUIRED:
            raise ModelFilesError(f"{path} has no {key}: the llama engine can't use it")
        return default

    return get
