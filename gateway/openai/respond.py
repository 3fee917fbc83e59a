"""Run a checked request and answer it over HTTP, as events or in one piece.

Called by the chat and completions routes, which bring the `Shape` of their answers. Owns the order of things: nothing is sent
before the first text, so that an early error has a status of its own; a later one goes in-band; an answer never just ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import web

from gateway.clients import ClientLeft
from gateway.generation import MeshError
from gateway.openai.api import ARRIVED_S, LABEL, OUTCOME, PLAN_HEADER, Api
from gateway.openai.errors import reply_for
from gateway.openai.outlet import Chunks, Outlet
from gateway.openai.sse import DONE, EventStream, event, send_whole
from gateway.prompting import Ask
from gateway.text import TextDelta, TextEnd
from pdd.telemetry import get_logger
from pdd.tracing.context import TRACEPARENT

log = get_logger(__name__)


class Shape(Chunks, Protocol):
    """How one answer of one route is written. Kept for that answer alone."""

    def closing(self, end: TextEnd) -> bytes:
        """The last events before the end marker."""
        ...

    def whole(self, deltas: Sequence[TextDelta], end: TextEnd) -> Mapping[str, object]:
        """The answer in one piece."""
        ...


async def respond(request: web.Request, api: Api, ask: Ask, shape: Shape, stream: bool) -> web.StreamResponse:
    """Raises ClientLeft at any time; MeshError and the like only while nothing has been sent."""
    if not stream:
        return await _whole(request, api, ask, shape)
    events = EventStream(request, api.write_deadline_s)
    try:
        await _stream(request, events, api, ask, shape)
    except ClientLeft:
        raise
    except Exception as error:
        if not events.started:
            raise
        await _fail_in_band(request, events, error)
    return events.response


async def _stream(request: web.Request, events: EventStream, api: Api, ask: Ask, shape: Shape) -> None:
    rest = b""
    async with api.answers.open(ask, request[ARRIVED_S], request.headers.get(TRACEPARENT, "")) as answer:
        events.response.headers[PLAN_HEADER] = answer.plan
        async for delta in answer:
            chunk = shape.chunk(delta)
            if chunk is not None:
                await events.send(chunk)
                rest = await Outlet(answer, shape, events).run()
    # The mesh is released by now: a client that is slow with the last bytes keeps nothing busy.
    await events.end(rest + shape.closing(answer.end) + DONE)


async def _whole(request: web.Request, api: Api, ask: Ask, shape: Shape) -> web.Response:
    async with api.answers.open(ask, request[ARRIVED_S], request.headers.get(TRACEPARENT, "")) as answer:
        deltas = [delta async for delta in answer]
    headers = {PLAN_HEADER: answer.plan}
    return await send_whole(request, shape.whole(deltas, answer.end), headers, api.write_deadline_s)


async def _fail_in_band(request: web.Request, events: EventStream, error: Exception) -> None:
    reply = reply_for(error)
    request[OUTCOME] = reply.status
    if isinstance(error, MeshError):
        log.warning("a stream failed", request=request[LABEL], code=error.code.value, reason=str(error))
    else:
        log.error("a stream failed", request=request[LABEL], exc_info=error)
    await events.end(event(reply.body()))
