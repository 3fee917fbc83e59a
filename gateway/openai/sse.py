"""Server-sent events to one client, with a bound on how long it may keep us waiting.

Called by `respond` and `outlet`. Owns one response; starts it with its first event, so that an error before that can still have
a status. What a slow client has not read stays bounded: past the transport's buffer the stream is `full`, and whoever waits for
room cuts the connection when the deadline passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import orjson
from aiohttp import hdrs, web

from gateway.clients import ClientLeft

DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # asks proxies not to collect events
}
_TEXT = "\0"  # where the text of a template goes; no other string in an event holds one


def event(body: Mapping[str, object]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


class EventTemplate:
    """Events that differ in one text alone: the rest is written once."""

    TEXT = _TEXT

    def __init__(self, body: Mapping[str, object]) -> None:
        """`body` has TEXT in the text's place, once."""
        self._before, self._after = event(body).split(orjson.dumps(_TEXT))

    def event(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, orjson.dumps(text), self._after)


class _Response(web.StreamResponse):
    # aiohttp's own answers in one piece have this too: the head leaves with the first part of the body, in one write.
    _send_headers_immediately = False


class EventStream:
    def __init__(self, request: web.Request, write_deadline_s: float) -> None:
        self._request = request
        self._write_deadline_s = write_deadline_s
        self._chunked = False
        self._protocol = request.protocol
        self._transport = request.transport  # None where the client has gone already
        self.response: web.StreamResponse = _Response(headers=_HEADERS)

    @property
    def started(self) -> bool:
        return self.response.prepared

    @property
    def full(self) -> bool:
        """The client has so much to read that nothing should be added."""
        return self._protocol.writing_paused

    async def send(self, data: bytes) -> None:
        """Send events, after the head of the response if these are the first. Raises ClientLeft."""
        async with _bounded(self._request, self._write_deadline_s):
            await self._start()
            await self.response.write(data)

    def push(self, data: bytes) -> None:
        """Send events once the stream has started, without a wait, and whether it is full or not."""
        # Past aiohttp's writer, whose only way to write is a coroutine; the framing is all that it adds.
        transport = self._transport
        if transport is not None and not transport.is_closing():  # else the client has gone, and the handler is about to hear it
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def room(self) -> None:
        """Wait until the stream is not full. Raises ClientLeft."""
        writer = await self.response.prepare(self._request)  # it is by now: this only gives the writer
        assert writer is not None
        async with _bounded(self._request, self._write_deadline_s):
            await writer.drain()

    async def end(self, data: bytes) -> None:
        """Send the last events and the end of the response in one write. Raises ClientLeft."""
        async with _bounded(self._request, self._write_deadline_s):
            await self._start()
            await self.response.write_eof(data)

    async def _start(self) -> None:
        if not self.started:
            await self.response.prepare(self._request)
            self._chunked = self.response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"  # not so for HTTP/1.0


async def send_whole(
    request: web.Request, body: Mapping[str, object], headers: Mapping[str, str], write_deadline_s: float
) -> web.Response:
    """Send a JSON answer in one piece, under the same bound. Raises ClientLeft."""
    response = web.Response(body=orjson.dumps(body), headers=headers, content_type="application/json")
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
