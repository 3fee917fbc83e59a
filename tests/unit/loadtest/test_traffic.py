from __future__ import annotations

from itertools import islice
from random import Random

from loadtest.answer import Message
from loadtest.traffic import Chats, agents, documents

CONTEXT_TOKENS = 4096  # of the small model that the repository's commands fetch


def test_a_chat_repeats_what_was_said_and_adds_a_question() -> None:
    for conversation in islice(Chats().conversations(Random(1)), 20):
        before = next(conversation).messages
        assert [message.role for message in before] == ["system", "user"]
        try:
            after = conversation.send("an answer").messages
        except StopIteration:
            continue
        assert after[: len(before)] == before
        assert after[len(before)] == Message("assistant", "an answer")
        assert after[-1].role == "user"


def test_all_chats_begin_alike_and_go_on_differently() -> None:
    first, second = (next(one).messages for one in islice(Chats().conversations(Random(1)), 2))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_agents_and_documents_fit_into_a_small_models_context() -> None:
    assert agents(1.0).context_tokens <= CONTEXT_TOKENS
    assert documents(1.0).context_tokens <= CONTEXT_TOKENS


def test_a_document_is_long_its_answer_short_and_nobody_asks_about_it_again() -> None:
    for session in islice(documents(1.0).sessions(Random(1)), 20):
        turn = session.next_turn(())
        assert turn is not None
        assert len(turn.prompt) > 10 * turn.max_tokens
        assert session.next_turn((1,) * turn.max_tokens) is None


def test_agents_begin_with_one_of_a_few_system_prompts() -> None:
    first = [session.next_turn(()) for session in islice(agents(1.0).sessions(Random(1)), 40)]
    assert len({turn.prompt[:16] for turn in first if turn is not None}) in (4, 5)  # those of the groups, and of the readers
