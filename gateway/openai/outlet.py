"""Writes an answer's events in the very call that brings its tokens: no task is woken for a token.

Made by `respond` for each stream, once its response has started. A frame of a decoder has a token of every running request, and
each of them comes out here as one write to the client's transport. The task of the request waits meanwhile for what is rare: the
end, an error, a client that reads too slowly.

Tokens that follow each other faster than any decoder's steps, because something has held them up, share an event: a stream is
written to at most once in MIN_INTERVAL_S.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.answer import Answer
from gateway.openai.sse import EventStream
from gateway.text import TextDelta

MIN_INTERVAL_S = 0.002


class Chunks(Protocol):
    def chunk(self, delta: TextDelta) -> bytes | None:
        """The event of a delta; None where it says nothing to the client yet."""
        ...


class Outlet:
    def __init__(self, answer: Answer, shape: Chunks, events: EventStream) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = answer
        self._shape = shape
        self._events = events
        self._woken = asyncio.Event()
        self._error: Exception | None = None
        self._rest = b""
        self._written_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False

    async def run(self) -> bytes:
        """Until the answer has ended; returns the events that came with its end, for whoever writes the last ones.

        Raises MeshError, after what came before it was written, and ClientLeft.
        """
        try:
            with self._answer.heard(self._heard):
                self._write()  # what has come since the response was started
                while not self._answer.ended:
                    await self._woken.wait()
                    self._woken.clear()
                    if self._error is not None:
                        raise self._error
                    if self._events.full:
                        await self._events.room()
                        self._write()
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._rest

    def _heard(self) -> None:
        if self._timer is not None or self._writing:
            return
        wait_s = self._written_s + MIN_INTERVAL_S - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._write)
        else:
            self._write()

    def _write(self) -> None:
        """Write all there is. Wakes the task where that is not all: at the end, on an error, and while the client lags behind."""
        self._timer = None
        if self._events.full:
            self._woken.set()
            return
        self._writing = True  # a stop string ends the request, which has us called again
        try:
            self._take_all()
        except Exception as error:
            self._error = error
            self._woken.set()
        finally:
            self._writing = False
        if self._answer.ended:
            self._woken.set()

    def _take_all(self) -> None:
        pieces: list[bytes] = []
        try:
            while (delta := self._answer.take()) is not None:
                piece = self._shape.chunk(delta)
                if piece is not None:
                    pieces.append(piece)
        finally:
            if pieces and self._answer.ended:
                self._rest = b"".join(pieces)
            elif pieces:
                self._events.push(b"".join(pieces))
                self._written_s = self._loop.time()
