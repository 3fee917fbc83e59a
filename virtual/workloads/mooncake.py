"""Replay of a trace in Mooncake's format: prompts whose blocks are equal where the trace says that they were.

A line is one request: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (a name for each block of 512
tokens, the last of which may be partial). A block's ids are a function of its name; a partial block is its request's own.
Requests are open loop: each is asked at its time, whatever became of the others.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.passages import NAMES, passage

BLOCK_TOKENS = 512
_PARTIAL = NAMES // 2  # names of partial blocks; those of whole ones are lower


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at_ms: int
    input_tokens: int
    output_tokens: int
    blocks: Ids  # names, one for each begun block


def read_trace(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Raises ValueError for a line that is none of a trace."""
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            request = TraceRequest(
                fields["timestamp"], fields["input_length"], fields["output_length"], tuple(fields["hash_ids"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no request of a Mooncake trace: {error!r}") from error
        if len(request.blocks) != -(-request.input_tokens // BLOCK_TOKENS):
            raise ValueError(f"line {number}: {len(request.blocks)} hash_ids are not the blocks of {request.input_tokens} tokens")
        yield request


@dataclass(frozen=True, slots=True)
class Mooncake:
    """`scale` shortens blocks, and with them prompts and answers: which blocks are equal stays as it is."""

    requests: Sequence[TraceRequest]  # in order of their times
    from_s: float = 0.0  # of the trace; what comes before is left out, and this becomes the start
    to_s: float = float("inf")
    scale: float = 1.0
    rate: float = 1.0  # how much faster than the trace

    def __post_init__(self) -> None:
        if BLOCK_TOKENS * self.scale % 1 or self.scale <= 0:
            raise ValueError(f"a scale of {self.scale} leaves no whole block of {BLOCK_TOKENS} tokens: take a power of ½")

    @property
    def block_tokens(self) -> int:
        """Of the scaled trace. A mesh with such blocks, or ones that divide them, hits where the trace does."""
        return int(BLOCK_TOKENS * self.scale)

    @property
    def context_tokens(self) -> int:
        return max((self._input_tokens(one) + self._output_tokens(one) for _, one in self._window()), default=1)

    def sessions(self, random: Random) -> Iterator[Session]:
        """Draws nothing."""
        for number, request in self._window():
            yield Session((request.at_ms / 1000 - self.from_s) / self.rate, self._only(number, request))

    def _only(self, number: int, request: TraceRequest) -> Generator[Turn, Ids, None]:
        yield Turn(self._prompt(number, request), self._output_tokens(request))

    def _window(self) -> Iterator[tuple[int, TraceRequest]]:
        """With their numbers in the trace."""
        return ((n, one) for n, one in enumerate(self.requests) if self.from_s <= one.at_ms / 1000 < self.to_s)

    def _prompt(self, number: int, request: TraceRequest) -> Ids:
        whole = request.input_tokens // BLOCK_TOKENS
        rest = self._input_tokens(request) - whole * self.block_tokens
        names = request.blocks[:whole]
        return tuple(chain(*(passage(name, self.block_tokens) for name in names), passage(_PARTIAL + number, rest)))

    def _input_tokens(self, request: TraceRequest) -> int:
        """At least 1; as many whole blocks as in the trace."""
        whole, rest = divmod(request.input_tokens, BLOCK_TOKENS)
        return max(1, whole * self.block_tokens + int(rest * self.scale))

    def _output_tokens(self, request: TraceRequest) -> int:
        return max(1, int(request.output_tokens * self.scale))
