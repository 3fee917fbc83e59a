"""A Generator that plays what a test writes down, behind the seam of gateway/generation.py."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway.generation import End, Generation, GenerationSpec, MeshError, Moments, Timeline, Tokens, Usage
from pdd.engine.base import FinishReason
from pdd.model.card import ModelCard
from pdd.sampling import TokenLogprobs

RELAY, MAIN = "relay-0", "main-0"
AHEAD = 8  # items that wait for the reader at most


@dataclass(frozen=True, slots=True)
class Hold:
    """Waits here until the test sets the event."""

    event: asyncio.Event


Step = Tokens | End | MeshError | Hold
Script = Callable[[GenerationSpec], Iterable[Step]]


def steps(spec: GenerationSpec, ids: Sequence[int], *, bundle: int = 1, timeline: Timeline | None = None) -> list[Step]:
    """The ids as the mesh would bring them: cut at max_tokens, the first half by a relay, `bundle` at a time, then the End."""
    limit = spec.sampling.max_tokens
    reason = FinishReason.LENGTH if len(ids) >= limit else FinishReason.STOP
    ids = ids[:limit]
    half = len(ids) // 2
    played: list[Step] = []
    for source, begin, end in ((RELAY, 0, half), (MAIN, half, len(ids))):
        for first in range(begin, end, bundle):
            tokens = tuple(ids[first : min(first + bundle, end)])
            played.append(Tokens(first, tokens, source, _logprobs(spec, tokens)))
    played.append(End(reason, Usage(len(spec.prompt), len(ids)), timeline or Timeline("relay", "one_shot")))
    return played


def saying(card: ModelCard, text: str, *, bundle: int = 1, timeline: Timeline | None = None) -> Script:
    """A script that answers with the text and end-of-sequence."""
    return lambda spec: steps(spec, [*card.encode(text), *card.eos_ids], bundle=bundle, timeline=timeline)


@dataclass
class ScriptedGenerator:
    script: Script
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    specs: list[GenerationSpec] = field(default_factory=list)
    running: int = 0
    stopped: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def generate(self, spec: GenerationSpec) -> AsyncIterator[Generation]:
        self.specs.append(spec)
        self.running += 1
        self.entered.set()
        generation = _ScriptedGeneration(self, self.script(spec))
        playing = asyncio.create_task(generation.play())
        try:
            yield generation
        finally:
            playing.cancel()
            self.running -= 1
            self.left.set()

    def missing_roles(self) -> tuple[str, ...]:
        return self.missing

    def degraded(self) -> tuple[str, ...]:
        return self.without


class _ScriptedGeneration:
    """Played by a task of its own, a few items ahead of the reader, as a mesh plays."""

    plan = "pipeline=direct; reason=scripted"
    moments = Moments("scripted", 0.0, Timeline("direct"))

    def __init__(self, owner: ScriptedGenerator, script: Iterable[Step]) -> None:
        self._owner = owner
        self._script = script
        self._stopped = False
        self._ready: deque[Tokens | End | MeshError | None] = deque()  # None: the script is over
        self._added, self._taken = asyncio.Event(), asyncio.Event()
        self._listener: Callable[[], None] | None = None

    async def play(self) -> None:
        for step in itertools.chain(self._script, [None]):
            await asyncio.sleep(0)  # as a mesh would, let others run between two items
            match step:
                case Hold():
                    if not self._stopped:
                        await step.event.wait()
                case Tokens() if self._stopped:
                    pass
                case _:
                    await self._add(step)

    async def _add(self, item: Tokens | End | MeshError | None) -> None:
        while len(self._ready) >= AHEAD:
            self._taken.clear()
            await self._taken.wait()
        self._ready.append(item)
        self._added.set()
        if self._listener is not None:
            self._listener()

    def stop(self) -> None:
        self._stopped = True
        self._owner.stopped += 1
        for item in tuple(self._ready):
            if isinstance(item, Tokens):
                self._ready.remove(item)

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def take(self) -> Tokens | End | None:
        if not self._ready:
            return None
        item = self._ready.popleft()
        self._taken.set()
        match item:
            case None:
                raise RuntimeError("the script is over")
            case MeshError():
                raise item
            case End() if self._stopped:
                return replace(item, reason=FinishReason.STOP)
        return item

    async def __aiter__(self) -> AsyncIterator[Tokens | End]:
        while True:
            while not self._ready:
                self._added.clear()
                await self._added.wait()
            if self._ready[0] is None:
                return
            item = self.take()
            assert item is not None
            yield item


def _logprobs(spec: GenerationSpec, tokens: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    top = spec.sampling.top_logprobs
    if top is None:
        return ()
    return tuple(TokenLogprobs(-0.5, tuple((token + place, -0.5 - place) for place in range(top))) for token in tokens)
