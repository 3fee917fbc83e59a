from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pdd.model.gguf_tokenizer import GgufModel, build_tokenizer
from pdd.model.manifest import ModelFilesError

SPECIAL, ADDED = "<|end|>", "<tool>"
TOKENS = (SPECIAL, ADDED, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġw", "12", "or", "Ġwor")
MODEL = GgufModel(
    context_tokens=64,
    layers=1,
    kv_heads=1,
    head_size=2,
    bos_token="",
    eos_token=SPECIAL,
    eos_ids=(0,),
    chat_template="",
    pre_tokenizer="smollm",
    bpe=True,
    tokens=TOKENS,
    token_types=(3, 4, *(1 for _ in TOKENS[2:])),
    merges=("Ġ w", "1 2", "o r", "Ġw or"),
)


def pieces(text: str, model: GgufModel = MODEL) -> list[str]:
    return build_tokenizer(model).encode(text, add_special_tokens=False).tokens


def test_merges_apply_and_digits_stand_alone() -> None:
    assert pieces("x wor12") == ["x", "Ġwor", "1", "2"]


def test_other_pre_tokenizers_keep_digits_together() -> None:
    assert pieces("x wor12", replace(MODEL, pre_tokenizer="gpt-2")) == ["x", "Ġwor", "12"]


def test_control_and_added_tokens_are_taken_whole_anywhere() -> None:
    assert pieces("a<|end|>b<tool> wor") == ["a", SPECIAL, "b", ADDED, "Ġwor"]


def test_only_control_tokens_are_special() -> None:
    tokenizer = build_tokenizer(MODEL)
    assert tokenizer.decode([0, 1, TOKENS.index("Ġwor")], skip_special_tokens=True) == "<tool> wor"


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    tokenizer = build_tokenizer(MODEL)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("change", [{"pre_tokenizer": "unheard-of"}, {"bpe": False}])
def test_an_unknown_kind_asks_for_a_tokenizer_file(change: dict[str, object]) -> None:
    with pytest.raises(ModelFilesError, match="--tokenizer"):
        build_tokenizer(replace(MODEL, **change))  # type: ignore[arg-type]
