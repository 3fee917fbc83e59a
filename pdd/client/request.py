"""What a client may ask, and its message on the wire. Pure; the gateway judges the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from pdd.client.errors import REQUEST_ID_KEY
from pdd.label import is_label
from pdd.tracing.context import TRACEPARENT
from pdd.v1 import inference_pb2
from pdd.v1.sampling_pb2 import LogitBias

DEFAULT_ADDRESS = "127.0.0.1:50050"


@dataclass(frozen=True, slots=True)
class Text:
    """Tokenised as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # "system", "user" or "assistant"
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Put through the model's chat template."""

    messages: Sequence[Message]

    @classmethod
    def question(cls, content: str) -> Chat:
        """A conversation that begins with it."""
        return cls((Message("user", content),))


@dataclass(frozen=True, slots=True)
class TokenIds:
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """As GenerateRequest in inference.proto; None leaves the default to the gateway."""

    input: Text | Chat | TokenIds
    model: str = ""  # the only one where it is empty
    stop: Sequence[str] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None  # 64 bits, not negative
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Sequence[tuple[int, float]] = ()  # (token, bias)
    ignore_eos: bool = False
    top_logprobs: int | None = None  # None asks for no logprobs
    expected_tokens: int | None = None  # how long the answer is likely to be: for routing, and no bound

    def to_proto(self) -> inference_pb2.GenerateRequest:
        """Raises ValueError where a number or a text does not fit its field."""
        message = inference_pb2.GenerateRequest(model=self.model, stop=self.stop, options=self._options())
        match self.input:
            case Text(text):
                message.prompt = text
            case Chat(messages):
                wire = [inference_pb2.ChatMessage(role=said.role, content=said.content) for said in messages]
                message.chat.CopyFrom(inference_pb2.ChatInput(messages=wire))
            case TokenIds(ids):
                message.tokens.CopyFrom(inference_pb2.TokenInput(ids=ids))
        return message

    def _options(self) -> inference_pb2.GenerateOptions:
        """Both sides name the options alike."""
        apart = ("input", "model", "stop", "logit_bias")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        bias = [LogitBias(token=token, bias=bias) for token, bias in self.logit_bias]
        return inference_pb2.GenerateOptions(**given, logit_bias=bias)


def request_metadata(request_id: str, traceparent: str) -> tuple[tuple[str, str], ...]:
    """Raises ValueError where one of them can't travel as it is."""
    given = {name: value for name, value in (("request_id", request_id), ("traceparent", traceparent)) if value}
    for name, value in given.items():
        if not is_label(value):  # gRPC itself fails on some of the rest, and says so in no way that helps
            raise ValueError(f"{name} must have 1 to 128 visible ASCII characters and no spaces, got {value!r:.150}")
    keys = {"request_id": REQUEST_ID_KEY, "traceparent": TRACEPARENT}
    return tuple((keys[name], value) for name, value in given.items())
