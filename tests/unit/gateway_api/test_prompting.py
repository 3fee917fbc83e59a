from dataclasses import replace
from typing import Any

import pytest

from gateway.prompting import CONTEXT_EXCEEDED, MAX_CHARACTERS_PER_TOKEN, InvalidRequest, Options, Prompting, UnknownModel
from pdd.model.card import ModelCard
from pdd.sampling import SamplingParams
from tests.unit.gateway_api.prompts import CARD, CONTEXT, prompting


def sampling(options: Options, prompt: tuple[int, ...] = (1, 2, 3)) -> SamplingParams:
    return prompting().ask(prompt, options, "label", streaming=True).spec.sampling


def test_defaults_are_those_of_the_proto_and_the_rest_of_the_context() -> None:
    assert sampling(Options()) == SamplingParams(max_tokens=CONTEXT - 3, seed=(1 << 64) - 1, eos_ids=CARD.eos_ids)


def test_no_traceback_can_quote_a_prompt() -> None:
    ask = prompting().ask((41, 42, 43), Options(), "label", streaming=True)
    assert "41, 42" not in repr(ask)


def test_every_option_reaches_the_sampler() -> None:
    options = Options(
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        temperature=0.8,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        seed=-1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((7, -100.0),),
        top_logprobs=20,
        stop=("a", "b"),
    )
    ask = prompting().ask((1,), options, "label", streaming=False)
    assert ask.stop == ("a", "b")
    assert ask.spec.label == "label"
    assert ask.spec.sampling == SamplingParams(
        max_tokens=9,
        seed=(1 << 64) - 1,  # -1 as 64 bits
        temperature=0.8,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((7, -100.0),),
        min_tokens=2,
        ignore_eos=True,
        eos_ids=CARD.eos_ids,
        top_logprobs=20,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 1e300),
        ("top_k", -2),
        ("top_k", 1 << 32),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("seed", 1 << 64),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("logit_bias", ((-1, 0.0),)),
        ("logit_bias", ((10**9, 0.0),)),
        ("logit_bias", tuple((token, 0.0) for token in range(1025))),
        ("logit_bias[3]", ((3, 101.0),)),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("stop", ("a", "b", "c", "d", "e")),
        ("stop", ("",)),
        ("stop", ("é" * 129,)),
    ],
)
def test_a_broken_bound_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling(replace(Options(), **{field.partition("[")[0]: value}))
    assert caught.value.field == field


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling(Options(max_tokens=3, min_tokens=4))
    assert caught.value.field == "min_tokens"


def test_prompt_and_max_tokens_together_fit_the_context() -> None:
    assert sampling(Options(max_tokens=CONTEXT - 3)).max_tokens == CONTEXT - 3
    with pytest.raises(InvalidRequest) as caught:
        sampling(Options(max_tokens=CONTEXT - 2))
    assert (caught.value.field, caught.value.code) == ("max_tokens", CONTEXT_EXCEEDED)


def test_a_prompt_leaves_room_for_one_token() -> None:
    assert len(prompting().ids([1] * (CONTEXT - 1))) == CONTEXT - 1
    with pytest.raises(InvalidRequest) as caught:
        prompting().ids([1] * CONTEXT)
    assert (caught.value.field, caught.value.code) == ("prompt", CONTEXT_EXCEEDED)


@pytest.mark.parametrize("text", [" the" * CONTEXT, "x" * 100_000])
def test_a_text_longer_than_the_context_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="context of 64") as caught:
        prompting().text(text)
    assert caught.value.code == CONTEXT_EXCEEDED


def test_the_context_is_the_one_that_holds_now() -> None:
    bound = [8]
    asked = Prompting(CARD, lambda: bound[0], lambda _bits: 1)
    with pytest.raises(InvalidRequest):
        asked.ids(range(8))
    bound[0] = 9
    assert asked.ids(range(8)) == tuple(range(8))


def test_a_prompt_has_a_token() -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        prompting().text("")
    with pytest.raises(InvalidRequest, match="no tokens"):
        prompting().ids([])


@pytest.mark.parametrize("token", [-1, 10**9])
def test_ids_lie_in_the_vocabulary(token: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompting().ids([1, token])
    assert caught.value.field == "prompt[1]"


def test_a_chat_goes_through_the_template() -> None:
    ids = prompting().chat([{"role": "user", "content": "hi there"}])
    text = CARD.tokenizer.decode(list(ids), skip_special_tokens=False)
    assert text == "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n"


def test_a_chat_names_what_is_wrong_with_it() -> None:
    for messages, field in (
        ([], "messages"),
        ([{"role": "user", "content": ""}, {"role": "tool", "content": ""}], "messages[1].role"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            prompting().chat(messages)
        assert caught.value.field == field


def test_a_template_that_refuses_the_messages_is_the_clients_error() -> None:
    card = replace(CARD, chat_template="{{ raise_exception('the user speaks first') }}")
    with pytest.raises(InvalidRequest, match="the user speaks first"):
        Prompting(card, lambda: CONTEXT, lambda _bits: 1).chat([{"role": "system", "content": "x"}])


def test_another_model_is_unknown() -> None:
    prompting().check_model("pdd-sim")
    with pytest.raises(UnknownModel, match="gpt-5"):
        prompting().check_model("gpt-5")


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a prompt is rendered or encoded."""

    def read(*_args: object) -> None:
        raise AssertionError("the prompt was rendered or encoded")

    monkeypatch.setattr(ModelCard, "render_chat", read)
    monkeypatch.setattr(ModelCard, "encode", read)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}] * CONTEXT,
        [{"role": "user", "content": ""}] * CONTEXT,
        [{"role": "user", "content": "a" * (MAX_CHARACTERS_PER_TOKEN * CONTEXT + 1)}],
        [{"role": "user", "content": "a" * (MAX_CHARACTERS_PER_TOKEN * CONTEXT // 2 + 1)}] * 2,
    ],
)
def test_a_conversation_that_can_not_fit_is_refused_unread(messages: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidRequest, match="context of 64") as caught:
        prompting().chat(messages)
    assert (caught.value.field, caught.value.code) == ("messages", CONTEXT_EXCEEDED)


@pytest.mark.usefixtures("unread")
def test_a_text_that_can_not_fit_is_refused_unread() -> None:
    with pytest.raises(InvalidRequest, match="context of 64") as caught:
        prompting().text("a" * (MAX_CHARACTERS_PER_TOKEN * CONTEXT + 1))
    assert (caught.value.field, caught.value.code) == ("prompt", CONTEXT_EXCEEDED)


def test_no_more_than_the_characters_a_token_may_have_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, sizes = ModelCard.encode, []

    def counting(card: ModelCard, text: str) -> list[int]:
        sizes.append(len(text))
        return encode(card, text)

    monkeypatch.setattr(ModelCard, "encode", counting)
    card = replace(CARD, chat_template="{% for message in messages %}{{ message['content'] * 100 }}{% endfor %}")
    for messages in ([{"role": "user", "content": "a" * CONTEXT}], [{"role": "user", "content": "a"}] * 7):
        with pytest.raises(InvalidRequest, match="context of 64"):
            prompting(card=card).chat(messages)
    # A template that makes too much of it is refused at its length; the other is tried by its beginning.
    assert sizes == [8 * CONTEXT]
