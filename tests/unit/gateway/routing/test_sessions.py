from gateway.routing.sessions import SessionBook
from pdd.identity import Instance

HOME, OTHER = Instance("home", 1), Instance("other", 1)


def test_the_next_turn_is_recognised_by_the_turn_before() -> None:
    book = SessionBook()
    assert book.claim((1, 2, 3)) is None
    book.ended((1, 2, 3), HOME)
    assert book.claim((1, 2, 3, 4, 5)) == HOME


def test_a_shared_beginning_is_no_conversation() -> None:
    book = SessionBook()
    book.ended((1, 2, 3), HOME)
    assert book.claim((1, 2, 9)) is None
    assert book.claim((1, 2)) is None


def test_the_longest_turn_counts() -> None:
    book = SessionBook()
    book.ended((1,), OTHER)
    book.ended((1, 2), HOME)
    assert book.claim((1, 2, 3)) == HOME


def test_one_of_many_equal_prompts_is_the_next_turn() -> None:
    book = SessionBook()
    book.ended((1, 2), HOME)
    assert [book.claim((1, 2)) for _ in range(3)] == [HOME, None, None]


def test_a_turn_without_a_main_leaves_the_conversation_where_it_was() -> None:
    book = SessionBook()
    book.ended((1, 2), HOME)
    book.ended((1, 2, 3), book.claim((1, 2, 3)))
    book.ended((1, 2, 3), None)
    assert book.claim((1, 2, 3, 4)) == HOME


def test_the_conversation_without_a_turn_is_forgotten_first() -> None:
    book = SessionBook(bound=2)
    for key in (1, 2, 1, 3):
        book.ended((key,), HOME)
    assert [book.claim((key,)) for key in (1, 2, 3)] == [HOME, None, HOME]
