"""What happens to a request, as the handoff machine and the timeline hear it: events in.

Made by `gateway.mesh` from the frames of prefill, relay and main, and by the API's side of the request. Data only. An event of
one instance names its role; the messages in them are for a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.generation import MeshErrorCode
from gateway.mode import DecoderLoad, Leaning
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Prefill sampled output index 0. With `finish` the answer ends here, and no decoder opens.

    LENGTH: this is the last token. STOP: it is an end of sequence, and the answer has no token at all.
    """

    token: int
    finish: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    computed_tokens: int = 0  # of the prompt
    cached_tokens: int = 0  # of the prompt
    compute_s: float = 0.0  # from the first chunk's start to the sampled token


@dataclass(frozen=True, slots=True)
class Wanted:
    """A decoder answered prefill's offer: so much has to cross."""

    role: Role
    missing_blocks: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class TransferDone:
    """Prefill heard Committed from the decoder in `role`."""

    role: Role
    blocks: int
    bytes: int
    duration_s: float  # from the first frame, or from the offer where no frame was sent


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """Prefill could not bring the KV to the decoder in `role`."""

    role: Role
    message: str
    code: MeshErrorCode = MeshErrorCode.KV_REFUSED


@dataclass(frozen=True, slots=True)
class KvReady:
    """The decoder in `role` has proven the prompt's KV whole."""

    role: Role


@dataclass(frozen=True, slots=True)
class Extended:
    """The decoder has computed one Extend."""

    role: Role
    next_index: int  # output tokens [0, next_index) are in its KV
    computed_tokens: int  # the prompt's tail, if this was the first pass, and the ids
    compute_s: float
    scored_tokens: int = 0  # ids for which its own sampler was asked too, where the Extend wanted it
    agreed_tokens: int = 0  # those of them that its sampler chose as well


@dataclass(frozen=True, slots=True)
class Recalled:
    """The decoder has given back what it was to extend, and computed none of it."""

    role: Role


class NewTokens(NamedTuple):
    """The decoder made output tokens [first_index, first_index + len(tokens))."""

    role: Role
    first_index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, or none


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer to StopRelay: output tokens [0, next_index) exist, none will follow. The handle is closed."""

    role: Role
    next_index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The decoder made the last token, of index next_index - 1. The handle is closed."""

    role: Role
    reason: FinishReason
    next_index: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The instance gave the request up, for its own reasons. Closes a decoder's handle; prefill still sends its Closed."""

    role: Role
    code: MeshErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The instance holds nothing for the request any more: prefill's Released, a decoder's Aborted."""

    role: Role


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream to the instance is gone, and with it the handle."""

    role: Role
    message: str


@dataclass(frozen=True, slots=True)
class KvLate:
    """On `direct`: main's KV is not there by its deadline, or so much of it is missing that it will not be."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecallLate:
    """Main has answered a recall neither with Recalled nor with Extended within the time that its answer takes."""

    reason: str


@dataclass(frozen=True, slots=True)
class LongerThanExpected:
    """On `singular`: the answer outgrew its estimate."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No instance was found for OpenRelay or StartTransfer: there is no handle in that role."""

    role: Role
    message: str


@dataclass(frozen=True, slots=True)
class MainLoad:
    """How busy main is: told just before its KvReady, and again when it has a slot for a request that found none then.

    What was promised to other requests of this gateway counts as waiting.
    """

    load: DecoderLoad


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prefill has computed some of what is queued there, of this request or of another."""


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The relay's load asks for another way to hand over."""

    leaning: Leaning


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The API has seen a stop string: the answer is complete."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Nobody reads any more."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """No instance has said anything about the request for this long."""

    waited_s: float


HandoffEvent = (
    FirstToken
    | Wanted
    | TransferDone
    | TransferFailed
    | KvReady
    | Extended
    | Recalled
    | NewTokens
    | Stopped
    | Finished
    | Failed
    | Closed
    | Lost
    | KvLate
    | RecallLate
    | LongerThanExpected
    | Unavailable
    | MainLoad
    | PrefillProgress
    | ModeChanged
    | StopRequested
    | ClientGone
    | DeadlinePassed
)
