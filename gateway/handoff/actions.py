"""What the handoff machine wants done: actions out. Data only.

Carried out in order, at once and without waiting, by `gateway.mesh.request`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.generation import MeshErrorCode
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs


class Emit(NamedTuple):
    """Show output tokens [first_index, first_index + len(tokens)), made in `source`."""

    first_index: int
    tokens: tuple[int, ...]
    source: Role
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, or none


@dataclass(frozen=True, slots=True)
class Extend:
    """Give main known ids, the first of output index `first_index`; with `then_decode` it goes on from there.

    With `score`, main also counts which of them its own sampler would have chosen.
    """

    first_index: int
    ids: tuple[int, ...]  # at least 1
    then_decode: bool
    score: bool = False


@dataclass(frozen=True, slots=True)
class ThrottleRelay:
    """Let the relay make at most one token per interval; 0 lifts it."""

    min_interval_s: float


@dataclass(frozen=True, slots=True)
class StopRelay:
    """Let the relay end after the step under way and say where: Stopped."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop all that the instance holds for the request."""

    role: Role
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete. No action follows."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fail:
    """The answer cannot be completed. No action follows."""

    code: MeshErrorCode
    role: Role | None  # whose fault it is
    message: str


Action = Emit | Extend | ThrottleRelay | StopRelay | Abort | Finish | Fail
