"""One answer: a generation of the mesh, read as text, and measured.

Called by both public APIs with a checked request. Owns the order of things between the mesh's tokens and the client's text; never
formats for a client. Leaving `Answers.open` by any path releases the request in the mesh: the one way to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Self

from gateway.detokenizer import Vocabulary
from gateway.generation import End, Generation, Generator, MeshError, Tokens
from gateway.metrics import GatewayMetrics
from gateway.prompting import Ask
from gateway.text import AnswerText, TextDelta, TextEnd
from gateway.traces import RequestTrace
from pdd.tracing.tracer import Tracer


class GenerationBroken(Exception):
    """The mesh ended a generation without saying how: a fault of ours, never to be shown as a finished answer."""


class Answers:
    def __init__(
        self, generator: Generator, vocabulary: Vocabulary, metrics: GatewayMetrics, tracer: Tracer | None = None
    ) -> None:
        self.generator = generator
        self.vocabulary = vocabulary
        self.metrics = metrics
        self._tracer = tracer

    @asynccontextmanager
    async def open(self, ask: Ask, arrived_s: float, traceparent: str = "") -> AsyncIterator[Answer]:
        """Start the request that arrived at `arrived_s` (the loop's time). MeshError may come from here and from the answer.

        `traceparent` is the client's, as it sent it.
        """
        try:
            async with AsyncExitStack() as stack:
                spec, trace = ask.spec, self._trace(ask, arrived_s, traceparent)
                if trace is not None:
                    stack.enter_context(trace)  # first, so that it ends when the mesh has let go of the request
                    spec = replace(spec, trace=trace.context.to_bytes())
                with self.metrics.waiting():
                    generation = await stack.enter_async_context(self.generator.generate(spec))
                if trace is not None:
                    trace.generation = generation
                text = AnswerText(self.vocabulary.detokenizer(), ask.stop)
                yield Answer(generation, text, self.metrics, arrived_s)
        except MeshError as error:
            self.metrics.generation_failed(error.code)
            raise

    def _trace(self, ask: Ask, arrived_s: float, traceparent: str) -> RequestTrace | None:
        root = None if self._tracer is None else self._tracer.begin(traceparent)
        if self._tracer is None or root is None:
            return None
        return RequestTrace(self._tracer, root, ask.spec.label, len(ask.spec.prompt), arrived_s)


class Answer:
    """Iterate it for the deltas, in index order; `end` is there afterwards. Iterating raises MeshError.

    Or, without a task to wake for every delta: `heard` calls back when there may be something, and `take` gives it.
    """

    def __init__(self, generation: Generation, text: AnswerText, metrics: GatewayMetrics, arrived_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._generation = generation
        self._items = aiter(generation)
        self._text = text
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._last_s: float | None = None
        self._end: TextEnd | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def plan(self) -> str:
        """How the mesh serves it, and why."""
        return self._generation.plan

    @property
    def end(self) -> TextEnd:
        """How the answer ended, and the text that was kept back until then."""
        if self._end is None:
            raise GenerationBroken("the answer has not ended")
        return self._end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextDelta:
        while self._end is None:
            delta = self._read(await self._next_item())
            if delta is not None:
                return delta
        raise StopAsyncIteration

    def take(self) -> TextDelta | None:
        """The next delta if it is here already; None where it is not, and when the answer has `ended`. Raises MeshError."""
        while self._end is None:
            item = self._generation.take()
            if item is None:
                return None
            delta = self._read(item)
            if delta is not None:
                return delta
        return None

    @contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Inside, `listener` is called whenever there may be something to `take`; it must not raise. Nobody iterates inside."""
        self._generation.listen(listener)
        try:
            yield
        finally:
            self._generation.listen(None)

    async def _next_item(self) -> Tokens | End:
        try:
            return await anext(self._items)
        except StopAsyncIteration:
            raise GenerationBroken("a generation stopped without its End") from None

    def _read(self, item: Tokens | End) -> TextDelta | None:
        if isinstance(item, End):
            self._end = self._text.end(item)
            self._metrics.generation_ended(self._end.usage, self._end.timeline)
            return None
        if self._text.stopped:
            return None
        delta = self._text.push(item)
        self._metrics.tokens(delta.source, len(delta.tokens))
        now_s = self._loop.time()
        if self._last_s is None:
            self._metrics.first_tokens(now_s - self._arrived_s)
        else:
            self._metrics.next_tokens(now_s - self._last_s)
        self._last_s = now_s
        if self._text.stopped:
            self._generation.stop()
        return delta
