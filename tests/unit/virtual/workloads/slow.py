"""A generator that gives its tokens at set times, behind the seam of gateway/generation.py."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.generation import End, Generation, GenerationSpec, MeshError, Moments, Timeline, Tokens, Usage
from pdd.engine.base import FinishReason

Item = Tokens | End | MeshError


@dataclass
class SlowGenerator:
    """Answers with ids 0, 1, 2, … a bundle at a time, each after its pause; the last pause is repeated."""

    pauses_s: Sequence[float]
    bundle: int = 1
    fails: Callable[[GenerationSpec], MeshError | None] = lambda _spec: None  # once half of the answer is there
    specs: list[GenerationSpec] = field(default_factory=list)
    asked_s: list[float] = field(default_factory=list)
    running: int = 0

    @asynccontextmanager
    async def generate(self, spec: GenerationSpec) -> AsyncIterator[Generation]:
        self.specs.append(spec)
        self.asked_s.append(asyncio.get_running_loop().time())
        self.running += 1
        answer = _Answer()
        playing = asyncio.create_task(self._play(spec, answer))
        try:
            yield answer
        finally:
            playing.cancel()
            self.running -= 1

    def missing_roles(self) -> tuple[str, ...]:
        return ()

    def degraded(self) -> tuple[str, ...]:
        return ()

    async def _play(self, spec: GenerationSpec, answer: _Answer) -> None:
        total, failure = spec.sampling.max_tokens, self.fails(spec)
        for number, first in enumerate(range(0, total, self.bundle)):
            await asyncio.sleep(self.pauses_s[min(number, len(self.pauses_s) - 1)])
            if failure is not None and first >= total // 2:
                answer.put(failure)
                return
            answer.put(Tokens(first, tuple(range(first, min(total, first + self.bundle))), "main-0"))
        timeline = Timeline("relay", eager_tokens=1, wan_kv_bytes=100)
        answer.put(End(FinishReason.LENGTH, Usage(len(spec.prompt), total, cached_tokens=2), timeline))


class _Answer(Generation):
    plan = "relay"
    moments = Moments("slow", 0.0, Timeline("relay"))

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._listener: Callable[[], None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._listener is not None:
            self._listener()

    def take(self) -> Tokens | End | None:
        item = self._items.popleft() if self._items else None
        if isinstance(item, MeshError):
            raise item
        return item

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def stop(self) -> None:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Tokens | End]:
        raise NotImplementedError
