"""POST /v1/completions.

Called by aiohttp. Parses the body, has it checked, and gives `respond` the shape of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from gateway.detokenizer import Vocabulary
from gateway.openai.api import LABEL, Api, expected_tokens, read_body
from gateway.openai.errors import fields_named
from gateway.openai.respond import respond
from gateway.openai.schema import CompletionRequest, parse
from gateway.openai.sse import EventTemplate, event
from gateway.openai.wording import AnswerHead, completion_logprobs, usage_body
from gateway.text import TextDelta, TextEnd


class Completions:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def post(self, request: web.Request) -> web.StreamResponse:
        api = self._api
        body = parse(CompletionRequest, await read_body(request, api.body_deadline_s), api.prompting.check_pieces)
        api.prompting.check_model(body.model)
        with fields_named(body.renamed):
            prompt = api.prompting.text(body.prompt) if isinstance(body.prompt, str) else api.prompting.ids(body.prompt)
            ask = api.prompting.ask(
                prompt, body.options(), request[LABEL], streaming=bool(body.stream), expected_tokens=expected_tokens(request)
            )
        head = AnswerHead(f"cmpl-{api.new_id()}", int(api.unix_time_s()), body.model)
        logprobs = body.logprobs is not None
        shape = CompletionShape(head, api.answers.vocabulary, logprobs=logprobs, include_usage=body.include_usage)
        return await respond(request, api, ask, shape, bool(body.stream))


class CompletionShape:
    def __init__(self, head: AnswerHead, vocabulary: Vocabulary, *, logprobs: bool, include_usage: bool) -> None:
        self._head = head
        self._vocabulary = vocabulary
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._template = None if logprobs else EventTemplate(self._body(EventTemplate.TEXT, None, None))

    def chunk(self, delta: TextDelta) -> bytes | None:
        if self._template is not None:
            return self._template.event(delta.text) if delta.text else None
        return event(self._body(delta.text, [delta], None))

    def closing(self, end: TextEnd) -> bytes:
        last = event(self._body(end.text, None, end.reason.value))
        if self._include_usage:
            last += event(self._head.body("text_completion") | {"choices": [], "usage": usage_body(end.usage)})
        return last

    def whole(self, deltas: Sequence[TextDelta], end: TextEnd) -> Mapping[str, object]:
        text = "".join(delta.text for delta in deltas) + end.text
        choice = self._choice(text, deltas, end.reason.value)
        return self._head.body("text_completion") | {"choices": [choice], "usage": usage_body(end.usage)}

    def _body(self, text: str, tokens: Sequence[TextDelta] | None, finish: str | None) -> dict[str, object]:
        body = self._head.body("text_completion") | {"choices": [self._choice(text, tokens, finish)]}
        return body | {"usage": None} if self._include_usage else body

    def _choice(self, text: str, tokens: Sequence[TextDelta] | None, finish: str | None) -> dict[str, object]:
        logprobs = completion_logprobs(tokens, self._vocabulary) if self._logprobs and tokens is not None else None
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
