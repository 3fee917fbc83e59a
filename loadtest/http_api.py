"""The OpenAI-compatible API, read as the bytes come.

Called by the users. locust's own `iter_lines` waits for a full buffer of 1 KiB, and a token's event is a quarter of one: first
tokens would be seen late, gaps as none or as four in one. Here each read returns what has arrived. Every request has a connection
of its own, which is closed after it: with several workers of a gateway, each gets its share of the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import orjson
from tokenizers import Tokenizer

from loadtest.answer import AnswerFailed, Ask, Reading
from loadtest.sse import EventReader

CHAT_ROUTE = "/v1/chat/completions"
COMPLETIONS_ROUTE = "/v1/completions"
PLAN_HEADER = "x-pdd-plan"
EXPECTED_HEADER = "x-pdd-expected-tokens"
_READ_BYTES = 64 << 10
_DONE = b"[DONE]"


class HttpApi:
    name = "http"

    def __init__(self, url: str, model: str, tokenizer: Tokenizer, clock: Callable[[], float], timeout_s: float = 120.0) -> None:
        """`tokenizer` is the model's: answers come as text, and the next turn of a conversation may repeat them as ids.

        `timeout_s` bounds the wait for each next byte.
        """
        self._url = url
        self._model = model
        self._tokenizer = tokenizer
        self._clock = clock
        self._timeout_s = timeout_s

    def route(self, ask: Ask) -> str:
        return CHAT_ROUTE if _messages(ask) else COMPLETIONS_ROUTE

    def read(self, ask: Ask, reading: Reading) -> None:
        try:
            with closing(connect(self._url, self._timeout_s)) as connection:
                connection.request("POST", self.route(ask), orjson.dumps(self._body(ask)), _headers(ask))
                with connection.getresponse() as response:
                    self._read(response, reading)
        except (OSError, HTTPException) as error:
            raise AnswerFailed(type(error).__name__) from error
        if not _messages(ask):
            reading.ids = tuple(self._tokenizer.encode(reading.text, add_special_tokens=False).ids)

    def _read(self, response: HTTPResponse, reading: Reading) -> None:
        if response.status != 200:
            raise AnswerFailed(f"HTTP {response.status} {_code(orjson.loads(response.read()))}")
        reading.plan = response.headers.get(PLAN_HEADER, "")
        for payload in _payloads(response):
            now_s = self._clock()
            if payload == _DONE:
                return
            event = orjson.loads(payload)
            if "error" in event:
                raise AnswerFailed(f"in the stream: {_code(event)}")
            if event.get("usage"):
                reading.count(event["usage"]["completion_tokens"])
            text = "".join(_text(choice) for choice in event["choices"])
            if text:
                reading.deliver(text, 1, now_s)
        raise AnswerFailed("the stream ended without [DONE]")

    def _body(self, ask: Ask) -> dict[str, object]:
        messages = _messages(ask)
        prompt: dict[str, object] = {"messages": messages} if messages else {"prompt": ask.prompt}
        return prompt | {
            "model": self._model,
            "max_tokens": ask.max_tokens,
            "ignore_eos": True,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def connect(url: str, timeout_s: float) -> HTTPConnection:
    """A connection to the host of `url`; it is opened with the first request. Raises ValueError for what is no URL of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ValueError(f"{url!r} is no address of a gateway: write http://host:port")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s)


def get(url: str, path: str, timeout_s: float = 10.0) -> bytes:
    """The body. Raises OSError and HTTPException; OSError also for an answer other than 200."""
    with closing(connect(url, timeout_s)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            body = response.read()
            if response.status != 200:
                raise OSError(f"{url}{path} answered {response.status}")
            return body


def served_model(url: str) -> str:
    """The id of the model behind a gateway. Raises OSError and HTTPException; OSError also where there is none."""
    served = orjson.loads(get(url, "/v1/models"))["data"]
    if not served:
        raise OSError(f"{url} serves no model yet: look at {url}/ready")
    return str(served[0]["id"])


def _payloads(response: HTTPResponse) -> Iterator[bytes]:
    events = EventReader()
    while data := response.read1(_READ_BYTES):
        yield from events.feed(data)


def _messages(ask: Ask) -> list[dict[str, str]]:
    return [{"role": one.role, "content": one.content} for one in ask.prompt if not isinstance(one, int)]


def _headers(ask: Ask) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    if ask.expected_tokens is not None:
        headers[EXPECTED_HEADER] = str(ask.expected_tokens)
    return headers


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def _code(body: dict[str, Any]) -> str:
    error = body.get("error", {})
    return str(error.get("code") or error.get("type") or "without a code")
