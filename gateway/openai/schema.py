"""The bodies of /v1/chat/completions and /v1/completions, as far as their shape goes.

Called by the two routes. Types are strict. Null and the default of every field that OpenAI documents pass, and so does what
changes no answer: hints, labels, and the defaults of what vLLM's clients send. Any other value of a field that is not supported
is refused by name, and so is an unknown field. `prompting` judges the bounds, for both APIs alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from gateway.openai.errors import BadRequest
from gateway.prompting import MAX_STOPS, Options
from pdd.sampling_proto import MAX_LOGIT_BIASES

MAX_FIELDS = 64  # of one object; more than any object here knows


def _only(*defaults: object) -> AfterValidator:
    """For a field that is known and not supported: null and these values say nothing, anything else is refused."""

    def check(value: object) -> object:
        # 1 == True and 0 == False in Python, not in JSON.
        if value is None or any(type(value) is type(default) and value == default for default in defaults):
            return None
        raise PydanticCustomError("unsupported", "this value is not supported; leave the field out or send its default")

    return AfterValidator(check)


def _parts(content: object, message: ValidationInfo) -> object:
    if content is None and message.data.get("role") == "assistant":
        return []  # as clients send back a turn without text
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return content
    raise PydanticCustomError("content", "must be a string or a list of text parts")


def _strings(value: object) -> object:
    if value is None or isinstance(value, list):
        return value
    if isinstance(value, str):
        return [value]
    raise PydanticCustomError("strings", "must be a string or a list of strings")


def _one_prompt(value: object) -> str | tuple[int, ...]:
    """A string or token ids; a list that holds just one of them is taken too."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if isinstance(value, list) and len(value) > 1 and all(isinstance(item, str | list) for item in value):
        raise PydanticCustomError("unsupported", "one prompt a request; send several requests")
    raise PydanticCustomError("prompt", "must be a string, a list of one string, or a list of token ids")


class _Object(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TextPart(_Object):
    type: Annotated[object, _only("text")]
    text: str
    prompt_cache_breakpoint: object = None  # a hint: the caches here find prefixes by themselves


class Message(_Object):
    role: str
    content: Annotated[list[TextPart], FailFast(), BeforeValidator(_parts)]
    name: Annotated[object, _only()] = None
    refusal: Annotated[object, _only()] = None
    audio: Annotated[object, _only()] = None
    function_call: Annotated[object, _only()] = None
    tool_calls: Annotated[object, _only([])] = None
    tool_call_id: Annotated[object, _only()] = None

    def plain(self) -> dict[str, str]:
        """As the chat template takes it. "developer" is OpenAI's newer name for "system"."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


class StreamOptions(_Object):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: clients must do without it anyway
    continuous_usage_stats: Annotated[object, _only(False)] = None


class _GenerationRequest(_Object):
    """What the two bodies have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_strings)] = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    user: str | None = None
    n: Annotated[object, _only(1)] = None
    # Hints and labels: the answer is the same without them.
    metadata: dict[str, str] | None = None
    priority: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: object = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    # Of vLLM's clients, known and not supported.
    best_of: Annotated[object, _only(1)] = None
    length_penalty: Annotated[object, _only(1, 1.0)] = None
    skip_special_tokens: Annotated[object, _only(True)] = None
    use_beam_search: Annotated[object, _only(False)] = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def renamed(self) -> Mapping[str, str]:
        """The client's names of fields that have other names inside the gateway."""
        return {"max_tokens": "max_completion_tokens"} if self.max_completion_tokens is not None else {}

    def _options(self, top_logprobs: int | None) -> Options:
        if self.include_usage and not self.stream:
            raise BadRequest("stream_options: only with stream=true", "stream_options")
        asked = {
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "temperature": self.temperature,
            "top_p": self.top_p,
            # vLLM's clients say "all tokens" with -1.
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
        return Options(
            **{name: value for name, value in asked.items() if value is not None},  # type: ignore[arg-type]
            max_tokens=self._max_tokens(),
            logit_bias=tuple((self.logit_bias or {}).items()),
            top_logprobs=top_logprobs,
            stop=tuple(self.stop or ()),
        )

    def _max_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise BadRequest("max_tokens: contradicts max_completion_tokens, its newer name", "max_tokens")
        return old if new is None else new


class ChatRequest(_GenerationRequest):
    messages: Annotated[list[Message], FailFast()]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Known and not supported.
    add_generation_prompt: Annotated[object, _only(True)] = None
    audio: Annotated[object, _only()] = None
    function_call: Annotated[object, _only("none")] = None
    functions: Annotated[object, _only([])] = None
    modalities: Annotated[object, _only(["text"])] = None
    moderation: Annotated[object, _only()] = None
    parallel_tool_calls: Annotated[object, _only(True)] = None
    prediction: Annotated[object, _only()] = None
    reasoning_effort: Annotated[object, _only("none", "medium")] = None
    response_format: Annotated[object, _only({"type": "text"})] = None
    store: Annotated[object, _only(False)] = None
    tool_choice: Annotated[object, _only("none", "auto")] = None
    tools: Annotated[object, _only([])] = None
    verbosity: Annotated[object, _only("medium")] = None
    web_search_options: Annotated[object, _only()] = None

    def options(self) -> Options:
        """Raises BadRequest where two fields contradict each other."""
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs: only with logprobs=true", "top_logprobs")
        return self._options((self.top_logprobs or 0) if self.logprobs else None)


class CompletionRequest(_GenerationRequest):
    prompt: Annotated[str | tuple[int, ...], PlainValidator(_one_prompt)]
    logprobs: int | None = None
    # Known and not supported.
    echo: Annotated[object, _only(False)] = None
    suffix: Annotated[object, _only("")] = None

    @property
    def renamed(self) -> Mapping[str, str]:
        return {**super().renamed, "top_logprobs": "logprobs"}

    def options(self) -> Options:
        """Raises BadRequest where two fields contradict each other."""
        return self._options(self.logprobs)


RequestT = TypeVar("RequestT", bound=_GenerationRequest)


def parse(kind: type[RequestT], body: bytes, check_pieces: Callable[[int, str], None]) -> RequestT:
    """Raises BadRequest, which names the first field that is wrong, and what `check_pieces` raises.

    Depth of nesting is bounded by the JSON parser.
    """
    _check_sizes(_plain(body), check_pieces)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error


def _check_sizes(body: object, check_pieces: Callable[[int, str], None]) -> None:
    """Refuse what is too much whatever it says: the model below lists every mistake, and a body has room for a million."""
    if not isinstance(body, dict):
        return
    _at_most(MAX_FIELDS, body, None)
    _at_most(MAX_STOPS, body.get("stop"), "stop")
    _at_most(MAX_LOGIT_BIASES, body.get("logit_bias"), "logit_bias")
    _at_most(MAX_FIELDS, body.get("stream_options"), "stream_options")
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, list):
        check_pieces(len(prompt), "prompt")
    if not isinstance(messages, list):
        return
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [content for content in contents if isinstance(content, list)]
    # A message without parts is still one piece.
    check_pieces(len(messages) - len(parts) + sum(max(1, len(content)) for content in parts), "messages")
    for place, message in enumerate(messages):
        _at_most(MAX_FIELDS, message, f"messages[{place}]")
    for part in itertools.chain.from_iterable(parts):
        _at_most(MAX_FIELDS, part, "messages")


def _plain(body: bytes) -> object:
    try:
        return from_json(body)
    except ValueError:
        return None  # the model's own parser says what is wrong


def _at_most(bound: int, value: object, field: str | None) -> None:
    if isinstance(value, list | dict) and len(value) > bound:
        message = f"at most {bound} entries, got {len(value)}"
        raise BadRequest(f"{field}: {message}" if field else f"The body has too many fields: {message}", field, "invalid_value")


_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported": "unsupported_value",
}


def _refusal(details: ErrorDetails) -> BadRequest:
    kind, message = details["type"], details["msg"]
    if kind == "json_invalid":
        return BadRequest(f"The body is not valid JSON: {message.removeprefix('Invalid JSON: ')}")
    path = _path(details["loc"])
    if path is None:
        return BadRequest("The body must be a JSON object.")
    if kind == "extra_forbidden":
        message = "there is no such field"
    return BadRequest(f"{path}: {message[:1].lower()}{message[1:]}", path, _CODES.get(kind, "invalid_value"))


def _path(location: tuple[int | str, ...]) -> str | None:
    """messages[0].content of ("messages", 0, "content")."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return path.removeprefix(".") or None
