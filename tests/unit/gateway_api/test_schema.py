"""The bodies' shape; what the routes answer to it is in tests/mesh/api."""

import json
from typing import Any

import pytest

from gateway.openai.errors import BadRequest
from gateway.openai.schema import ChatRequest, CompletionRequest, parse
from gateway.prompting import CONTEXT_EXCEEDED, InvalidRequest, Options
from tests.unit.gateway_api.prompts import CONTEXT, prompting

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


CHECK_PIECES = prompting().check_pieces


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps(CHAT | fields).encode(), CHECK_PIECES)


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps(TEXT | fields).encode(), CHECK_PIECES)


def refused(read: Any, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(**fields).options()
    return caught.value


def test_a_bare_body_asks_for_the_defaults() -> None:
    assert chat().options() == completion().options() == Options()


def test_null_is_the_default_of_every_field() -> None:
    assert chat(**dict.fromkeys(set(ChatRequest.model_fields) - set(CHAT))).options() == Options()
    assert completion(**dict.fromkeys(set(CompletionRequest.model_fields) - set(TEXT))).options() == Options()


CHAT_DEFAULTS = {
    "audio": None,
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": False,
    "metadata": {"team": "search"},
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "prompt_cache_key": "agent-7",
    "prompt_cache_retention": "24h",
    "safety_identifier": "u-1",
    "service_tier": "flex",
    "stop": [],
    "store": False,
    "stream": False,
    "stream_options": {"include_usage": False, "include_obfuscation": True},
    "temperature": 1,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1,
    "user": "someone",
    "verbosity": "medium",
    # Extensions that clients of other servers send.
    "add_generation_prompt": True,
    "best_of": 1,
    "ignore_eos": False,
    "length_penalty": 1.0,
    "min_p": 0,
    "min_tokens": 0,
    "priority": 0,
    "repetition_penalty": 1,
    "skip_special_tokens": True,
    "top_k": -1,
    "use_beam_search": False,
}


@pytest.mark.parametrize("field", CHAT_DEFAULTS)
def test_defaults_of_chat_fields_say_nothing(field: str) -> None:
    assert chat(**{field: CHAT_DEFAULTS[field]}).options() == Options()


@pytest.mark.parametrize(("field", "value"), [("best_of", 1), ("echo", False), ("suffix", ""), ("n", 1), ("user", "u")])
def test_defaults_of_completion_fields_say_nothing(field: str, value: object) -> None:
    assert completion(**{field: value}).options() == Options()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "ash"}),
        ("function_call", "auto"),
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("n", 2),
        ("n", True),
        ("parallel_tool_calls", False),
        ("prediction", {"type": "content", "content": "x"}),
        ("reasoning_effort", "high"),
        ("response_format", {"type": "json_object"}),
        ("skip_special_tokens", False),
        ("store", True),
        ("store", 0),
        ("tool_choice", "required"),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("verbosity", "low"),
        ("web_search_options", {}),
    ],
)
def test_what_chat_does_not_support_is_named(field: str, value: object) -> None:
    error = refused(chat, **{field: value})
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize(("field", "value"), [("best_of", 2), ("echo", True), ("suffix", "x"), ("n", 3)])
def test_what_completions_do_not_support_is_named(field: str, value: object) -> None:
    error = refused(completion, **{field: value})
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("model", 5, "model"),
        ("messages", "hi", "messages"),
        ("messages", ["hi"], "messages[0]"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        ("messages", [{"content": "hi"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": None}], "messages[0].content"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [{"role": "user", "content": "hi", "name": "bob"}], "messages[0].name"),
        ("messages", [{"role": "user", "content": "hi", "extra": 1}], "messages[0].extra"),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "text": ""}]}], "messages[0].content[0].type"),
        ("max_tokens", "5", "max_tokens"),
        ("max_tokens", 5.5, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_completion_tokens", "5", "max_completion_tokens"),
        ("min_tokens", [], "min_tokens"),
        ("ignore_eos", "yes", "ignore_eos"),
        ("ignore_eos", 1, "ignore_eos"),
        ("seed", "x", "seed"),
        ("temperature", "hot", "temperature"),
        ("temperature", True, "temperature"),
        ("top_p", {}, "top_p"),
        ("top_k", 1.5, "top_k"),
        ("logit_bias", {"abc": 1}, "logit_bias.abc"),
        ("logit_bias", {"5": "x"}, "logit_bias.5"),
        ("logit_bias", [], "logit_bias"),
        ("logprobs", 5, "logprobs"),
        ("top_logprobs", True, "top_logprobs"),
        ("stop", 5, "stop"),
        ("stop", ["a", 5], "stop[1]"),
        ("stream", "yes", "stream"),
        ("stream_options", True, "stream_options"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
        ("stream_options", {"other": 1}, "stream_options.other"),
        ("user", 5, "user"),
        ("no_such_field", 1, "no_such_field"),
        ("no_such_field", None, "no_such_field"),
    ],
)
def test_a_wrong_type_or_unknown_field_is_named(field: str, value: object, param: str) -> None:
    error = refused(chat, **{field: value})
    assert error.param == param
    assert str(error).startswith(param)


@pytest.mark.parametrize("prompt", [None, 5, {}, [1, "a"], [True], [1.5], ["a", 1], [[1], "a"], [["a"]]])
def test_a_prompt_of_another_kind_is_refused(prompt: object) -> None:
    assert refused(completion, prompt=prompt).param == "prompt"


def test_several_prompts_are_refused() -> None:
    assert refused(completion, prompt=["a", "b"]).code == "unsupported_value"
    assert refused(completion, prompt=[[1], [2]]).code == "unsupported_value"


@pytest.mark.parametrize(("prompt", "read"), [("hi", "hi"), (["hi"], "hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ([7], (7,))])
def test_a_prompt_is_a_text_or_ids(prompt: object, read: object) -> None:
    assert completion(prompt=prompt).prompt == read


def test_required_fields_are_named() -> None:
    for body, param in (({}, "model"), ({"model": "m"}, "messages")):
        with pytest.raises(BadRequest) as caught:
            parse(ChatRequest, json.dumps(body).encode(), CHECK_PIECES)
        assert (caught.value.param, caught.value.code) == (param, "missing_required_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 1_000_000,
    ],
    ids=["empty", "cut", "null", "list", "string", "no_utf8", "lone_surrogate", "deep_object", "deep_list"],
)
def test_what_is_no_json_object_is_refused_without_a_field(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(ChatRequest, body, CHECK_PIECES)
    assert caught.value.param is None


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = chat(messages=[{"role": "developer", "content": parts}]).messages
    assert message.plain() == {"role": "system", "content": "ab"}


def test_an_assistant_message_as_clients_send_it_back_is_accepted() -> None:
    sent = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "audio": None, "function_call": None}
    assert chat(messages=[sent]).messages[0].plain() == {"role": "assistant", "content": "hi"}


def test_an_assistant_turn_without_text_is_an_empty_one() -> None:
    assert chat(messages=[{"role": "assistant", "content": None}]).messages[0].plain() == {"role": "assistant", "content": ""}


def test_the_newer_name_of_max_tokens() -> None:
    assert chat(max_completion_tokens=7).options().max_tokens == 7
    assert chat(max_completion_tokens=7, max_tokens=7).options().max_tokens == 7
    assert refused(chat, max_completion_tokens=7, max_tokens=8).param == "max_tokens"
    assert chat(max_completion_tokens=7).renamed == {"max_tokens": "max_completion_tokens"}


def test_logprobs_of_chat_and_completions() -> None:
    assert chat(logprobs=True).options().top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).options().top_logprobs == 3
    assert refused(chat, top_logprobs=3).param == "top_logprobs"
    assert completion(logprobs=0).options().top_logprobs == 0
    assert completion(logprobs=5).options().top_logprobs == 5


def test_stop_is_a_string_or_strings() -> None:
    assert chat(stop="a").options().stop == ("a",)
    assert chat(stop=["a", "b"]).options().stop == ("a", "b")


def test_logit_bias_by_id() -> None:
    assert chat(logit_bias={"5": -1, "7": 2.5}).options().logit_bias == ((5, -1.0), (7, 2.5))


def test_usage_in_the_stream_needs_a_stream() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert refused(chat, stream_options={"include_usage": True}).param == "stream_options"


PART = {"type": "text", "text": "a"}
MESSAGE = {"role": "user", "content": "a"}


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which pydantic gets to see the body."""

    def seen(*_args: object) -> None:
        raise AssertionError("the body was validated")

    for kind in (ChatRequest, CompletionRequest):
        monkeypatch.setattr(kind, "model_validate_json", seen)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("read", "fields", "param"),
    [
        (chat, {"messages": [MESSAGE] * CONTEXT}, "messages"),
        (chat, {"messages": ["a"] * CONTEXT}, "messages"),
        (chat, {"messages": [MESSAGE | {"content": []}] * CONTEXT}, "messages"),
        (chat, {"messages": [MESSAGE | {"content": [PART] * CONTEXT}]}, "messages"),
        (chat, {"messages": [MESSAGE | {"content": [PART] * (CONTEXT // 2)}] * 2}, "messages"),
        (chat, {"messages": [MESSAGE, MESSAGE | {"content": [PART] * (CONTEXT - 1)}]}, "messages"),
        (completion, {"prompt": [1] * CONTEXT}, "prompt"),
    ],
)
def test_more_pieces_than_the_context_are_refused_before_they_are_looked_at(read: Any, fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert (caught.value.field, caught.value.code) == (param, CONTEXT_EXCEEDED)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({f"field_{number}": 1 for number in range(65)}, None),
        ({"stop": [5] * 5}, "stop"),
        ({"logit_bias": {f"a{number}": 1 for number in range(1025)}}, "logit_bias"),
        ({"stream_options": {f"a{number}": 1 for number in range(65)}}, "stream_options"),
        ({"messages": [MESSAGE, {f"a{number}": 1 for number in range(65)}]}, "messages[1]"),
        ({"messages": [MESSAGE | {"content": [{f"a{number}": 1 for number in range(65)}]}]}, "messages"),
    ],
)
def test_a_heap_of_mistakes_is_refused_before_each_is_looked_at(fields: dict[str, object], param: str | None) -> None:
    error = refused(chat, **fields)
    assert (error.param, error.code) == (param, "invalid_value")


def test_as_many_pieces_as_the_context_may_hold_are_read() -> None:
    parts = [PART] * (CONTEXT - 2)
    assert chat(messages=[MESSAGE, MESSAGE | {"content": parts}]).messages[1].plain()["content"] == "a" * (CONTEXT - 2)
    assert len(chat(messages=[MESSAGE] * (CONTEXT - 1)).messages) == CONTEXT - 1
