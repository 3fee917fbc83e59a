"""The engine interface: what prefill, relay and main ask of an engine, whichever it is.

The engine owns its scheduling: callers hand it sequences and ids and read one stream of step batches; they never step a sequence,
pick slots or run a forward pass. Commands are plain calls that return at once and take effect at a step's boundary; a command for
a sequence that has ended is ignored, since its closing event is on its way already.

A sequence's life, as seen in the batches (each arrow is one event, tokens come between):

    prefill()  ─► KvBlocks* ─► tokens[index 0] + Prefilled
    open()     ─► Extended* ─► tokens*          ─► [Retained] + (Stopped | Finished)
    any                                         ─► Aborted | Failed

A prefill may be given its leading blocks out of a cache; it computes and emits those after them. `open` takes no slot. The first
`extend` does: it imports the KV, computes the prompt's tail and the ids, and is acknowledged with Extended. All extends of a step
share a budget of tokens, so a long one goes over several steps, beside the others' decoding. With `then_decode` the token after
the last id is sampled with it, and decoding goes on.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pdd.kv.layout import KvLayout
from pdd.sampling import SamplingParams, TokenLogprobs

SeqId = int
Payload = bytes | memoryview


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


class EngineFault(Exception):
    """The engine can't serve a sequence; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Declared, not guessed: the gateway refuses what a pair of engines cannot hand over exactly."""

    context_tokens: int  # prompt and output of one sequence
    slots: int  # sequences in a batch
    exact_extend: bool  # extending known ids gives the KV that decoding them gave
    vocabulary_size: int  # ids lie in [0, vocabulary_size); a sequence that is given any other ends with Failed


@dataclass(frozen=True, slots=True)
class TokenOut:
    seq: SeqId
    index: int  # output index
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """Full blocks of a prompt being prefilled, in order, each exactly once; those it was given are not among them."""

    seq: SeqId
    first_block: int
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Index 0 is sampled (a TokenOut of the same batch) and the engine holds nothing for the sequence any more."""

    seq: SeqId
    finish: FinishReason | None  # index 0 was the last token
    computed_tokens: int  # without those of the blocks it was given
    queued_s: float
    compute_s: float  # from the first chunk's start


@dataclass(frozen=True, slots=True)
class Extended:
    """One `extend` was computed."""

    seq: SeqId
    next_index: int
    computed_tokens: int  # the tail, if this was the first pass, and the ids
    compute_s: float  # engine time of the steps that computed them
    scored_tokens: int = 0  # ids the engine's own sampler chose for too: see `Engine.extend`
    agreed_tokens: int = 0  # those of them where it chose the same


@dataclass(frozen=True, slots=True)
class Retained:
    """What a sequence leaves for a prefix cache: the full blocks after those of its prompt, as far as their KV was computed.

    Told in the batch of its Stopped or Finished, a step after its last token, and not at all where there is no such block.
    """

    seq: SeqId
    ids: tuple[int, ...]  # prompt and output up to the last block's end
    first_block: int  # the prompt's full blocks
    payloads: tuple[Payload, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stopped:
    seq: SeqId
    next_index: int


@dataclass(frozen=True, slots=True)
class Finished:
    seq: SeqId
    reason: FinishReason
    next_index: int


@dataclass(frozen=True, slots=True)
class Aborted:
    seq: SeqId


@dataclass(frozen=True, slots=True)
class Failed:
    seq: SeqId
    fault: EngineFault


EngineEvent = KvBlocks | Prefilled | Extended | Retained | Stopped | Finished | Aborted | Failed


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What one step did. Apply Extended, KvBlocks and Retained first, then the tokens, then the closing events."""

    step: int  # from 1
    duration_s: float
    tokens: tuple[TokenOut, ...] = ()
    events: tuple[EngineEvent, ...] = ()
    sequences: int = 0  # that had something computed
    computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    running: int
    waiting: int  # sequences that want a slot
    slots: int
    kv_used: float  # share of cache cells in use, 0..1
    step_s: float  # moving average
    queued_tokens: int  # prompt tokens not computed yet


@dataclass(frozen=True, slots=True)
class KvSource:
    """A prompt's leading full blocks, proven whole, to be imported once when the sequence takes a slot.

    The caller keeps the payloads alive until the sequence's first Extended or KvBlocks, or its closing event.
    """

    payloads: tuple[Payload, ...] = field(repr=False)


class Engine(ABC):
    """An async context manager: entering loads the model, leaving stops the threads. Commands are for the event loop's thread."""

    capabilities: Capabilities
    layout: KvLayout

    @abstractmethod
    def prefill(self, seq: SeqId, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None = None) -> None:
        """Compute a prompt of at least 1 token in chunks, emit its full blocks, sample output index 0.

        `kv` holds the leading blocks that need not be computed: at most (prompt tokens - 1) // block tokens of them, since the
        last token's logits choose index 0; with more the sequence ends with Failed. Only later blocks are emitted.
        """

    @abstractmethod
    def open(
        self, seq: SeqId, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None, retain: bool = False
    ) -> None:
        """Make a sequence known whose full blocks are `kv`; None lets the engine compute them.

        With `retain`, it gives out the blocks of its output before it ends with Stopped or Finished: see `Retained`.
        """

    @abstractmethod
    def extend(self, seq: SeqId, first_index: int, ids: Sequence[int], then_decode: bool, score: bool = False) -> None:
        """Take known output ids; `first_index` must be the next the sequence lacks, else it ends with Failed.

        With `score`, also choose each id as decoding would have, from the logits of the token before it, and count where the two
        agree. An id whose token before was not computed under `score` is not scored: output index 0 of a prompt without a tail,
        and the first id after an extend that was not scored. The ids given are what is computed and stands, whatever was chosen.
        """

    @abstractmethod
    def throttle(self, seq: SeqId, min_interval_s: float) -> None:
        """Decode at most one token per interval; 0 lifts it."""

    @abstractmethod
    def stop(self, seq: SeqId) -> None:
        """End a sequence at the next step's boundary; answered with Stopped after its last token."""

    @abstractmethod
    def abort(self, seq: SeqId) -> None:
        """Drop a sequence; answered with Aborted, after which no event names it."""

    @abstractmethod
    def steps(self) -> AsyncIterator[StepBatch]:
        """The one stream of batches, for one consumer. A slow consumer holds the engine back, it loses nothing."""

    @abstractmethod
    def load(self) -> EngineLoad: ...

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
