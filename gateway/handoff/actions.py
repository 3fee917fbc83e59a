"""What the handoff machine wants done: actions out. Data only.

Carried out in order, at once and without waiting, by `gateway.mesh.request`.

How decoders join. OpenRelay and StartTransfer are answered with Unavailable where nobody is found, and with nothing where
somebody is. While there is no handle in that role, what is to be sent to it is dropped. Either action gives prefill one more job
of the same request, with the new decoder as its only target, and the machine knows roles, not handles. So whoever carries it out
    hands on one FirstToken, of the job whose comes first: prefill gives the first one up where its last target is lost;
    tells the failure of such a job, and of the first one after FirstToken, as TransferFailed of each of its targets: those of the
      other job do not suffer by it;
    hands on prefill's Closed when its last job has closed and none is to come, and carries out Abort of prefill for every job.
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
class OpenRelay:
    """Find a relay for a request without one: admit it, and have prefill send it the KV."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Find a main for a request without one: admit it, and have prefill send it the KV."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecallMain:
    """Take back what main was given, unless its KV is whole: Recalled, or else Extended."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop all that the instance holds for the request."""

    role: Role
    reason: str
    keep: bool = False  # the answer is complete, and worth a place in its prefix cache


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


Action = Emit | Extend | ThrottleRelay | StopRelay | OpenRelay | StartTransfer | RecallMain | Abort | Finish | Fail
