import pytest

from gateway.routing.lengths import LengthBook


@pytest.mark.parametrize(("max_tokens", "hint", "expected"), [(100, None, 100), (100, 40, 40), (100, 400, 100), (100, 0, 1)])
def test_without_answers_the_bound_and_the_hint_count(max_tokens: int, hint: int | None, expected: int) -> None:
    assert LengthBook().expected("model", max_tokens, hint) == expected


def test_three_quarters_of_the_last_answers_are_shorter() -> None:
    book = LengthBook()
    for tokens in (*[1000] * 128, *range(100)):
        book.learn("model", tokens)
    for tokens in range(100, 128):
        book.learn("model", tokens)
    assert book.expected("model", 4096) == 96
    assert book.expected("model", 50) == 50
    assert book.expected("another", 4096) == 4096


def test_a_few_answers_are_no_estimate() -> None:
    book = LengthBook()
    for _ in range(7):
        book.learn("model", 10)
    assert book.expected("model", 4096) == 4096
    book.learn("model", 10)
    assert book.expected("model", 4096) == 10


def test_the_key_without_news_is_forgotten_first() -> None:
    book = LengthBook()
    for _ in range(8):
        book.learn("old", 10)
    for key in range(256):
        book.learn(key, 10)
    assert book.expected("old", 4096) == 4096
