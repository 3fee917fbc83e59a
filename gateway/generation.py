"""The seam between the public APIs (`openai/`, `inference`) and the mesh (`request`).

The APIs turn a body into a GenerationSpec and text out of the tokens that come back; the mesh behind `Generator` knows nothing of
HTTP, text or stop strings. Both sides are tested against this file alone.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pdd.engine.base import FinishReason
from pdd.sampling import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    prompt: tuple[int, ...] = field(repr=False)  # at least 1 id; prompt and max_tokens together fit the context
    sampling: SamplingParams
    label: str  # the client's x-request-id, for logs only
    streaming: bool = True  # someone watches the tokens come; False where only the whole answer counts
    expected_tokens: int | None = None  # how long the client thinks that the answer will be, where it says so
    trace: bytes = b""  # where its spans belong, as in Admit; empty where it is not traced


class Tokens(NamedTuple):
    """Tokens [first_index, first_index + len(tokens)) of the answer, all made by one instance."""

    first_index: int
    tokens: tuple[int, ...]
    source: str  # instance id
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token where asked for


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of the request; times in seconds from its arrival. Names as in inference.proto."""

    name: str
    instance: str
    start_s: float
    end_s: float
    tokens: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    pipeline: str  # "relay", "direct" or "singular", as planned
    handoff: str = ""  # "one_shot", "catch_up" or "" where there was none
    spans: tuple[Span, ...] = ()
    switch_gap_s: float = 0.0
    eager_tokens: int = 0
    main_computed_tokens: int = 0
    wan_kv_bytes: int = 0
    user_gap_s: float = 0.0
    scored_tokens: int = 0
    agreed_tokens: int = 0
    main_cached_tokens: int = 0  # of the prompt: main's own word, or the catalog's where main was not asked


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens shown from one decoder, and when the first and the last of them came."""

    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Moments:
    """What has become of a generation, and when by the loop's clock: for its trace."""

    request: str  # as the mesh's logs name it
    started_s: float  # planned, and sent to its instances
    timeline: Timeline
    cached_tokens: int = 0  # of the prompt, by prefill
    output_tokens: int = 0
    first_token_s: float | None = None  # prefill's word of index 0
    relay: Run | None = None
    main: Run | None = None
    finished: bool = False  # the answer is complete


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """The last item of a generation."""

    reason: FinishReason
    usage: Usage
    timeline: Timeline = field(default_factory=lambda: Timeline("direct"))


class MeshErrorCode(enum.Enum):
    NO_INSTANCE = "no_instance"  # a role has no healthy, compatible instance
    PEER_LOST = "peer_lost"  # an instance or its stream was lost
    KV_REFUSED = "kv_refused"  # a transfer was refused or broke
    ENGINE_FAILED = "engine_failed"
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"


# The others are not told when: what was lost during a request may be back at once, or never.
_RETRY_AFTER_S = {
    MeshErrorCode.OVERLOADED: 1,  # some slot or blocks have been let go by then
    MeshErrorCode.NO_INSTANCE: 2,  # an instance that has just started has registered and is connected
}


class MeshError(Exception):
    """The mesh could not finish a request. `str()` is for a person and names the instance."""

    def __init__(self, code: MeshErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def retry_after_s(self) -> int | None:
        """When a client should ask again, whichever API it uses; None where the mesh has no wish."""
        return _RETRY_AFTER_S.get(self.code)


class Generation(Protocol):
    """One running request: iterate it to its End, or leave the context early to cancel it."""

    @property
    def plan(self) -> str:
        """How the mesh serves it, and why: the value of the response header x-pdd-plan."""
        ...

    @property
    def moments(self) -> Moments:
        """What has happened so far. Costs nothing until it is asked for."""
        ...

    def __aiter__(self) -> AsyncIterator[Tokens | End]:
        """Yields Tokens in index order and exactly one End, last. Raises MeshError."""
        ...

    def take(self) -> Tokens | End | None:
        """The next item if it is here already, without a wait; None where it is not, and after the End. Raises MeshError."""
        ...

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Have `listener` called whenever there may be something to `take`: at once, on the loop; None to end that.

        While someone listens, nobody may iterate. The listener must not raise; it may `take` and `stop`.
        """
        ...

    def stop(self) -> None:
        """A stop string is complete: end the request as finished, with reason STOP. No Tokens follow; the End still does."""
        ...


class Generator(Protocol):
    def generate(self, spec: GenerationSpec) -> AbstractAsyncContextManager[Generation]:
        """Entering starts the request; leaving by any path releases everything it holds in the mesh."""
        ...

    def missing_roles(self) -> tuple[str, ...]:
        """Roles without a healthy instance that keep the gateway from serving; empty where it is ready."""
        ...

    def degraded(self) -> tuple[str, ...]:
        """What the mesh does without while it serves; empty where nothing is amiss."""
        ...
