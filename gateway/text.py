"""Tokens into the text a client sees: detokenised, cut at the first stop string, with offsets for logprobs.

Called by `answer` with the items of one generation. Owns the text state of one answer; never awaits, and never tells the mesh
anything: whoever calls it ends the generation when `stopped` turns true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.detokenizer import Detokenizer
from gateway.generation import End, Timeline, Tokens, Usage
from gateway.stop_strings import StopStrings
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs


class TextDelta(NamedTuple):
    """What some tokens of one instance add to the answer."""

    text: str  # empty while a character or a possible stop string is incomplete
    first_index: int
    tokens: tuple[int, ...]  # up to the one that completed a stop string
    source: str  # instance id
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token where asked for
    offsets: tuple[int, ...] = ()  # with logprobs, per token: characters of the answer before its text


@dataclass(frozen=True, slots=True)
class TextEnd:
    """The last item of an answer."""

    text: str  # kept back until now
    reason: FinishReason
    usage: Usage
    timeline: Timeline


class AnswerText:
    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops)
        self._characters = 0  # detokenised so far, kept back or not
        self._tokens = 0  # of the answer so far

    @property
    def stopped(self) -> bool:
        """A stop string is complete: no more text comes, whatever tokens do."""
        return self._stops.complete

    def push(self, item: Tokens) -> TextDelta:
        """The delta of an item; of its tokens those after a stop string's last are dropped."""
        if self._has_stops or item.logprobs:
            return self._push_with_care(item)
        self._tokens += len(item.tokens)
        text = "".join(map(self._detokenizer.push, item.tokens))
        self._characters += len(text)
        return TextDelta(text, item.first_index, item.tokens, item.source)

    def end(self, item: End) -> TextEnd:
        """The end as the client sees it: where a stop string cut the answer, so are reason and completion tokens."""
        text = self._take(self._detokenizer.flush())
        if self._stops.complete:
            return TextEnd(text, FinishReason.STOP, replace(item.usage, completion_tokens=self._tokens), item.timeline)
        return TextEnd(text + self._stops.flush(), item.reason, item.usage, item.timeline)

    def _push_with_care(self, item: Tokens) -> TextDelta:
        """Token by token: any of them may be the last, and each has an offset of its own."""
        shown: list[str] = []
        offsets: list[int] = []
        for token in item.tokens:
            if self._stops.complete:
                break
            offsets.append(self._characters)
            shown.append(self._take(self._detokenizer.push(token)))
        kept = len(offsets)
        self._tokens += kept
        return TextDelta(
            text="".join(shown),
            first_index=item.first_index,
            tokens=item.tokens[:kept],
            source=item.source,
            logprobs=item.logprobs[:kept],
            offsets=tuple(offsets) if item.logprobs else (),
        )

    def _take(self, text: str) -> str:
        self._characters += len(text)
        return self._stops.push(text)
