"""POST /v1/completions.

Called by aiohttp. Parses the body, has it checked, and gives `respond` the shape of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.detokenizer import Vocabulary
from gateway.openai.api import LABEL, Api, read_body
from gateway.openai.errors import fields_named
from gateway.openai.respond import Event, respond
from gateway.openai.schema import CompletionRequest, parse
from gateway.openai.wording import AnswerHead, completion_logprobs, usage_body
from gateway.text import TextDelta, TextEnd


class Completions:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def post(self, request: web.Request) -> web.StreamResponse:
        api = self._api
        body = parse(CompletionRequest, await read_body(request, api.body_deadline_s))
        api.prompting.check_model(body.model)
        with fields_named(body.renamed):
            prompt = api.prompting.text(body.prompt) if isinstance(body.prompt, str) else api.prompting.ids(body.prompt)
            ask = api.prompting.ask(prompt, body.options(), request[LABEL])
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

    def chunk(self, delta: TextDelta) -> Event | None:
        if not delta.text and not self._logprobs:
            return None
        return self._event(delta.text, [delta], None)

    def closing(self, end: TextEnd) -> Sequence[Event]:
        events = [self._event(end.text, None, end.reason.value)]
        if self._include_usage:
            events.append(self._head.body("text_completion") | {"choices": [], "usage": usage_body(end.usage)})
        return events

    def whole(self, deltas: Sequence[TextDelta], end: TextEnd) -> Event:
        text = "".join(delta.text for delta in deltas) + end.text
        choice = self._choice(text, deltas, end.reason.value)
        return self._head.body("text_completion") | {"choices": [choice], "usage": usage_body(end.usage)}

    def _event(self, text: str, tokens: Sequence[TextDelta] | None, finish: str | None) -> dict[str, object]:
        event = self._head.body("text_completion") | {"choices": [self._choice(text, tokens, finish)]}
        return event | {"usage": None} if self._include_usage else event

    def _choice(self, text: str, tokens: Sequence[TextDelta] | None, finish: str | None) -> dict[str, object]:
        logprobs = completion_logprobs(tokens, self._vocabulary) if self._logprobs and tokens is not None else None
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
