"""Writes an answer's events in the very call that brings its tokens: no task is woken for a token.

Made by `respond` for each stream, once its response has started. A frame of a decoder has a token of every running request, and
each of them comes out here as one write to the client's transport. The task of the request waits meanwhile for what is rare: the
end, an error, a client that reads too slowly.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.answer import Answer
from gateway.openai.sse import EventStream
from gateway.text import TextDelta


class Chunks(Protocol):
    def chunk(self, delta: TextDelta) -> bytes | None:
        """The event of a delta; None where it says nothing to the client yet."""
        ...


class Outlet:
    def __init__(self, answer: Answer, shape: Chunks, events: EventStream) -> None:
        self._answer = answer
        self._shape = shape
        self._events = events
        self._woken = asyncio.Event()
        self._error: Exception | None = None
        self._rest = b""
        self._writing = False

    async def run(self) -> bytes:
        """Until the answer has ended; returns the events that came with its end, for whoever writes the last ones.

        Raises MeshError, after what came before it was written, and ClientLeft.
        """
        with self._answer.heard(self._write):
            self._write()  # what has come since the response was started
            while not self._answer.ended:
                await self._woken.wait()
                self._woken.clear()
                if self._error is not None:
                    raise self._error
                if self._events.full:
                    await self._events.room()
                    self._write()
        return self._rest

    def _write(self) -> None:
        """Write all there is. Wakes the task where that is not all: at the end, on an error, and while the client lags behind."""
        if self._writing:
            return  # a stop string has just ended the request, and we are told
        if self._events.full:
            self._woken.set()
            return
        self._writing = True
        try:
            self._take_all()
        except Exception as error:  # whoever calls us is a stream of the mesh, which other answers share
            self._error = error
        finally:
            self._writing = False
        if self._error is not None or self._answer.ended:
            self._woken.set()

    def _take_all(self) -> None:
        pieces: list[bytes] = []
        try:
            while (delta := self._answer.take()) is not None:
                piece = self._shape.chunk(delta)
                if piece is not None:
                    pieces.append(piece)
        finally:
            if self._answer.ended:
                self._rest += b"".join(pieces)
            elif pieces:
                self._events.push(b"".join(pieces))
