"""Server-sent events to one client, with a bound on how long it may keep us waiting.

Called by `respond`. Owns one response; starts it with its first event, so that an error before that can still have a status.
What a slow client has not read stays bounded: past the transport's buffer `send` waits, past the deadline the connection is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from gateway.openai.errors import ClientLeft

DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # asks proxies not to collect events
}


class EventStream:
    def __init__(self, request: web.Request, write_deadline_s: float) -> None:
        self._request = request
        self._write_deadline_s = write_deadline_s
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def started(self) -> bool:
        return self.response.prepared

    async def send(self, *events: Mapping[str, object], done: bool = False) -> None:
        """Send events, and the end marker if `done`, in one write. Raises ClientLeft."""
        data = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)
        async with _bounded(self._request, self._write_deadline_s):
            if not self.started:
                await self.response.prepare(self._request)
            await self.response.write(data + DONE if done else data)


async def send_whole(request: web.Request, body: Mapping[str, object], write_deadline_s: float) -> web.Response:
    """Send a JSON answer in one piece, under the same bound. Raises ClientLeft."""
    response = web.Response(body=orjson.dumps(body), content_type="application/json")
    async with _bounded(request, write_deadline_s):
        await response.prepare(request)
        await response.write_eof()
    return response


@asynccontextmanager
async def _bounded(request: web.Request, deadline_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ClientLeft(f"it has read nothing for {deadline_s:g} s") from None
    except ConnectionError as error:
        raise ClientLeft(str(error)) from error
