import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Vocabulary
from gateway.generation import End, Timeline, Tokens, Usage
from gateway.text import AnswerText, TextDelta
from pdd.engine.base import FinishReason
from pdd.engine.sim.vocabulary import sim_card
from pdd.sampling import TokenLogprobs

CARD = sim_card(1024)
VOCABULARY = Vocabulary(CARD.tokenizer)


def answer(*stops: str) -> AnswerText:
    return AnswerText(VOCABULARY.detokenizer(), stops)


def end(tokens: int, reason: FinishReason = FinishReason.LENGTH) -> End:
    return End(reason, Usage(5, tokens), Timeline("direct"))


def play(text: AnswerText, ids: list[int], bundle: int) -> list[TextDelta]:
    deltas = []
    for first in range(0, len(ids), bundle):
        if text.stopped:
            break
        deltas.append(text.push(Tokens(first, tuple(ids[first : first + bundle]), "relay-0")))
    return deltas


@given(st.text(max_size=30), st.integers(1, 5))
def test_deltas_and_end_join_to_the_text(words: str, bundle: int) -> None:
    ids = CARD.encode(words)
    text = answer("never in it, for sure")
    deltas = play(text, ids, bundle)
    assert "".join(delta.text for delta in deltas) + text.end(end(len(ids))).text == CARD.tokenizer.decode(ids)
    assert [token for delta in deltas for token in delta.tokens] == ids


@pytest.mark.parametrize("bundle", [1, 2, 3, 50])
def test_a_stop_over_two_tokens_does_not_leak(bundle: int) -> None:
    ids = CARD.encode(" the river ran to the sea and on")
    text = answer("to the")
    deltas = play(text, ids, bundle)
    closing = text.end(end(len(ids)))
    assert "".join(delta.text for delta in deltas) + closing.text == " the river ran "
    assert text.stopped
    assert closing.reason is FinishReason.STOP


@pytest.mark.parametrize("bundle", [1, 3, 50])
def test_tokens_and_usage_end_with_the_one_that_completes_the_stop(bundle: int) -> None:
    ids = CARD.encode(" the river to the sea")
    text = answer(" to")
    deltas = play(text, ids, bundle)
    shown = [token for delta in deltas for token in delta.tokens]
    assert CARD.tokenizer.decode(shown) == " the river to"
    assert text.end(end(len(ids))).usage == Usage(5, len(shown))


def test_what_could_have_become_a_stop_is_delivered_at_the_end() -> None:
    text = answer(" sea shore")
    (delta,) = play(text, CARD.encode(" the sea"), 10)
    closing = text.end(end(2, FinishReason.STOP))
    assert (delta.text, closing.text, closing.reason) == (" the", " sea", FinishReason.STOP)


def test_without_a_stop_reason_and_usage_are_the_meshs() -> None:
    text = answer(" never")
    play(text, CARD.encode(" the sea"), 1)
    closing = text.end(end(2))
    assert (closing.reason, closing.usage) == (FinishReason.LENGTH, Usage(5, 2))


def test_offsets_are_characters_before_each_token() -> None:
    text = answer()
    ids = CARD.encode(" the é sea")
    assert [CARD.tokenizer.decode([token]) for token in ids] == [" the", " \ufffd", "\ufffd", " sea"]
    delta = text.push(Tokens(0, tuple(ids), "relay-0", (TokenLogprobs(-1.0, ()),) * len(ids)))
    assert delta.offsets == (0, 4, 5, 6)


def test_logprobs_are_cut_with_the_tokens() -> None:
    ids = tuple(CARD.encode(" the river to the sea"))
    found = tuple(TokenLogprobs(-float(place), ()) for place in range(len(ids)))
    delta = answer(" river").push(Tokens(0, ids, "relay-0", found))
    assert [entry.logprob for entry in delta.logprobs] == [0.0, -1.0]
    assert len(delta.tokens) == 2
