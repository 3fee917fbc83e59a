"""POST /v1/chat/completions.

Called by aiohttp. Parses the body, has it checked, and gives `respond` the shape of a chat answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from gateway.detokenizer import Vocabulary
from gateway.openai.api import LABEL, Api, expected_tokens, read_body
from gateway.openai.errors import fields_named
from gateway.openai.respond import respond
from gateway.openai.schema import ChatRequest, parse
from gateway.openai.sse import EventTemplate, event
from gateway.openai.wording import AnswerHead, chat_logprobs, usage_body
from gateway.text import TextDelta, TextEnd


class ChatCompletions:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def post(self, request: web.Request) -> web.StreamResponse:
        api = self._api
        body = parse(ChatRequest, await read_body(request, api.body_deadline_s), api.prompting.check_pieces)
        api.prompting.check_model(body.model)
        with fields_named(body.renamed):
            prompt = api.prompting.chat([message.plain() for message in body.messages])
            ask = api.prompting.ask(
                prompt, body.options(), request[LABEL], streaming=bool(body.stream), expected_tokens=expected_tokens(request)
            )
        head = AnswerHead(f"chatcmpl-{api.new_id()}", int(api.unix_time_s()), body.model)
        shape = ChatShape(head, api.answers.vocabulary, logprobs=bool(body.logprobs), include_usage=body.include_usage)
        return await respond(request, api, ask, shape, bool(body.stream))


class ChatShape:
    def __init__(self, head: AnswerHead, vocabulary: Vocabulary, *, logprobs: bool, include_usage: bool) -> None:
        self._head = head
        self._vocabulary = vocabulary
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._began = False
        self._template: EventTemplate | None = None

    def chunk(self, delta: TextDelta) -> bytes | None:
        if self._template is not None:
            return self._template.event(delta.text) if delta.text else None
        if not delta.text and not self._logprobs:
            return None
        first = self._event({"content": delta.text}, [delta], None)
        if not self._logprobs:
            self._template = EventTemplate(self._body({"content": EventTemplate.TEXT}, None, None))
        return first

    def closing(self, end: TextEnd) -> bytes:
        # Without a token there was no chunk yet, and clients learn the role from the first.
        events = [self._event({"content": end.text}, [], None)] if end.text or not self._began else []
        events.append(self._event({}, None, end.reason.value))
        if self._include_usage:
            events.append(event(self._head.body("chat.completion.chunk") | {"choices": [], "usage": usage_body(end.usage)}))
        return b"".join(events)

    def whole(self, deltas: Sequence[TextDelta], end: TextEnd) -> Mapping[str, object]:
        content = "".join(delta.text for delta in deltas) + end.text
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": chat_logprobs(deltas, self._vocabulary) if self._logprobs else None,
            "finish_reason": end.reason.value,
        }
        return self._head.body("chat.completion") | {"choices": [choice], "usage": usage_body(end.usage)}

    def _event(self, delta: dict[str, str], tokens: Sequence[TextDelta] | None, finish: str | None) -> bytes:
        if not self._began:
            delta = {"role": "assistant"} | delta
            self._began = True
        return event(self._body(delta, tokens, finish))

    def _body(self, delta: dict[str, str], tokens: Sequence[TextDelta] | None, finish: str | None) -> dict[str, object]:
        logprobs = chat_logprobs(tokens, self._vocabulary) if self._logprobs and tokens is not None else None
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        body = self._head.body("chat.completion.chunk") | {"choices": [choice]}
        return body | {"usage": None} if self._include_usage else body
