import json

import hypothesis.strategies as st
from hypothesis import given

from pdd.engine.sim.reference import continuation
from pdd.engine.sim.vocabulary import sim_card, sim_vocabulary

CARD = sim_card(1000)
VOCABULARY = sim_vocabulary()


@given(st.text())
def test_any_text_encodes_and_comes_back(text: str) -> None:
    assert CARD.tokenizer.decode(CARD.encode(text), skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(VOCABULARY.choices), min_size=1))
def test_what_a_sim_says_encodes_to_the_ids_it_was_decoded_from(ids: list[int]) -> None:
    assert CARD.encode(CARD.tokenizer.decode(ids)) == ids


def test_an_answer_is_readable_words() -> None:
    text = CARD.tokenizer.decode(continuation(CARD.encode("Hello"), 200, ignore_eos=False))
    words = {CARD.tokenizer.decode([token]).strip() for token in VOCABULARY.choices}
    assert all(word.strip(".,") in words or not word.strip(".,") for word in text.split())


def test_each_word_is_one_token_and_there_are_enough() -> None:
    assert len(set(VOCABULARY.choices)) > 200
    assert all(len(CARD.encode(CARD.tokenizer.decode([token]))) == 1 for token in VOCABULARY.choices)


def test_ids_are_those_of_the_tokenizer() -> None:
    assert CARD.tokenizer.get_vocab_size() == VOCABULARY.size
    assert CARD.tokenizer.token_to_id("<|im_end|>") == VOCABULARY.eos_id == CARD.eos_ids[0]


def test_a_chat_renders_up_to_where_the_answer_begins() -> None:
    text = CARD.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert CARD.encode(text).count(VOCABULARY.eos_id) == 2


def test_the_digest_is_of_the_tokenizer_that_is_built() -> None:
    tokens = json.loads(CARD.tokenizer.to_str())["model"]["vocab"]
    assert tokens == VOCABULARY.tokens
    assert CARD.tokenizer_digest == VOCABULARY.digest
