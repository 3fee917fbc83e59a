"""A Generator that plays what a test writes down, behind the seam of gateway/generation.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway.generation import End, Generation, GenerationSpec, MeshError, Timeline, Tokens, Usage
from pdd.engine.base import FinishReason
from pdd.model.card import ModelCard
from pdd.sampling import TokenLogprobs

RELAY, MAIN = "relay-0", "main-0"


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
        try:
            yield _ScriptedGeneration(self, self.script(spec))
        finally:
            self.running -= 1
            self.left.set()

    def missing_roles(self) -> tuple[str, ...]:
        return self.missing


class _ScriptedGeneration:
    def __init__(self, owner: ScriptedGenerator, script: Iterable[Step]) -> None:
        self._owner = owner
        self._script = script
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._owner.stopped += 1

    async def __aiter__(self) -> AsyncIterator[Tokens | End]:
        for step in self._script:
            await asyncio.sleep(0)  # as a mesh would, let others run between two items
            match step:
                case Tokens() if not self._stopped:
                    yield step
                case End():
                    yield replace(step, reason=FinishReason.STOP) if self._stopped else step
                case Hold() if not self._stopped:
                    await step.event.wait()
                case MeshError():
                    raise step


def _logprobs(spec: GenerationSpec, tokens: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    top = spec.sampling.top_logprobs
    if top is None:
        return ()
    return tuple(TokenLogprobs(-0.5, tuple((token + place, -0.5 - place) for place in range(top))) for token in tokens)
