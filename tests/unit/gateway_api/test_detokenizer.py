import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway.detokenizer import REPLACEMENT, Vocabulary
from pdd.engine.sim.vocabulary import sim_card

CUT_TEXTS = ["grüße 👩‍👩‍👧‍👦 und 🇰🇷", "안녕하세요, 한국어", "สวัสดีครับ ภาษาไทย", "naïve €5 \N{MUSICAL SYMBOL G CLEF}"]


def trained_bpe() -> Tokenizer:
    """A byte-level BPE whose merges cut characters anywhere, with one special and one plain added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(alphabet), special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CUT_TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("東京タワー", special=False, normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A SentencePiece kind of vocabulary: words with a leading bar for the space, other characters as byte tokens."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581the", "\u2581cat", "s", "\u2581"]
    tokenizer = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)}, unk_token="\u2581"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


BPE, SIM, FALLBACK = trained_bpe(), sim_card(1024).tokenizer, byte_fallback()


def id_of(tokenizer: Tokenizer, piece: str) -> int:
    token = tokenizer.token_to_id(piece)
    assert token is not None
    return token


END = id_of(BPE, "<|end|>")


def shown(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], str]:
    detokenizer = Vocabulary(tokenizer).detokenizer()
    return [detokenizer.push(token) for token in ids], detokenizer.flush()


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token a byte."""
    vocabulary = Vocabulary(tokenizer)
    by_bytes = {vocabulary.bytes_of(token): token for token in range(tokenizer.get_vocab_size() - 1, -1, -1)}
    return [by_bytes[bytes([byte])] for byte in data]


@pytest.mark.parametrize("tokenizer", [BPE, SIM], ids=["bpe", "sim"])
@given(data=st.data())
def test_deltas_join_to_the_full_decode_whatever_the_tokens(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), max_size=40))
    deltas, rest = shown(tokenizer, ids)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    # What is cut short at the very end reads as one U+FFFD in the full decode, and is left unsaid.
    assert "".join(deltas) + rest in (whole, whole.removesuffix(REPLACEMENT))


@pytest.mark.parametrize("tokenizer", [BPE, SIM, FALLBACK], ids=["bpe", "sim", "fallback"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT)))
def test_characters_in_single_bytes_come_whole(tokenizer: Tokenizer, text: str) -> None:
    deltas, rest = shown(tokenizer, ids_of_bytes(tokenizer, text.encode()))
    assert REPLACEMENT not in "".join(deltas)
    assert "".join(deltas) + rest == tokenizer.decode(ids_of_bytes(tokenizer, text.encode()))
    if tokenizer is not FALLBACK:
        assert "".join(deltas) == text


@pytest.mark.parametrize("tokenizer", [BPE, SIM, FALLBACK], ids=["bpe", "sim", "fallback"])
@pytest.mark.parametrize("text", CUT_TEXTS)
def test_text_cut_anywhere_ends_before_the_broken_character(tokenizer: Tokenizer, text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        deltas, rest = shown(tokenizer, ids_of_bytes(tokenizer, data[:cut]))
        assert "".join(deltas) + rest == data[:cut].decode(errors="ignore")


@pytest.mark.parametrize("text", CUT_TEXTS)
def test_merged_tokens_show_each_character_once_it_is_whole(text: str) -> None:
    ids = BPE.encode(text).ids
    deltas, rest = shown(BPE, ids)
    assert ("".join(deltas), rest) == (text, "")
    assert not any(REPLACEMENT in delta for delta in deltas)


def test_a_character_goes_on_behind_a_special_token() -> None:
    first, *others = ids_of_bytes(BPE, "é".encode())
    assert shown(BPE, [first, END, *others])[0] == ["", "", "é"]


def test_a_replacement_character_that_the_model_wrote_is_shown() -> None:
    assert "".join(shown(BPE, ids_of_bytes(BPE, REPLACEMENT.encode()))[0]) == REPLACEMENT


def test_bytes_that_never_become_a_character_are_not_kept_back_for_ever() -> None:
    deltas, _ = shown(FALLBACK, [0xFF] * 40)
    assert "".join(deltas) == REPLACEMENT * 40


def test_spaces_between_words_survive_where_the_decoder_strips_the_first() -> None:
    ids = [id_of(FALLBACK, piece) for piece in ("\u2581the", "\u2581cat", "s", "\u2581the")]
    assert "".join(shown(FALLBACK, ids)[0]) == "the cats the"


def test_bytes_of_special_added_fallback_and_unknown_tokens() -> None:
    assert Vocabulary(BPE).bytes_of(END) == b"<|end|>"
    assert Vocabulary(BPE).bytes_of(id_of(BPE, "東京タワー")) == "東京タワー".encode()
    assert Vocabulary(FALLBACK).bytes_of(0xE2) == b"\xe2"
    assert Vocabulary(FALLBACK).bytes_of(id_of(FALLBACK, "\u2581cat")) == b" cat"
    assert Vocabulary(BPE).bytes_of(10**6) == b""
