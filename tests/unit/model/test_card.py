from dataclasses import replace

import jinja2
import pytest

from pdd.engine.sim.vocabulary import sim_card
from pdd.model.card import ChatTemplateError

CARD = sim_card(1024)
HELLO = [{"role": "user", "content": "hello"}]


def test_the_chat_template_is_compiled_once_and_not_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    card = replace(CARD, chat_template="{% for message in messages %}<{{ message.content }}>{% endfor %}")

    def compile_again(*_args: object, **_more: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(jinja2.Environment, "compile", compile_again)
    assert [card.render_chat(HELLO * count) for count in (1, 2)] == ["<hello>", "<hello><hello>"]


def test_a_template_that_is_none_is_refused_with_the_card() -> None:
    with pytest.raises(ChatTemplateError, match="can't be compiled"):
        replace(CARD, chat_template="{% for message in %}")


def test_messages_that_the_template_refuses_are_its_own_error() -> None:
    card = replace(CARD, chat_template="{{ raise_exception('only one message') }}")
    with pytest.raises(ChatTemplateError, match="only one message"):
        card.render_chat(HELLO)


def test_a_template_has_no_way_out_of_its_sandbox() -> None:
    card = replace(CARD, chat_template="{{ ''.__class__.__mro__ }}")
    with pytest.raises(ChatTemplateError):
        card.render_chat(HELLO)
