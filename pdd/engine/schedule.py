"""The batch scheduler, shared by every engine: which rows the next step computes, and what its results mean.

Called by `batch` on the event loop: commands at any time, `plan` and `complete` in turn. Owns the slots and every sequence. It
never computes, waits or reads a clock. What a step holds, in this order:

    decode rows      one for every sequence that decodes and is due
    extends          oldest first, up to `extend_tokens` in all; what one leaves of it is the next one's
    prefill chunks   oldest first, up to `chunk_tokens` in all, and what the extends left of `step_tokens`: see `chunks`
    exports          what sequences that are over leave for a prefix cache

So a step has at most `step_tokens` known tokens and one row more per slot, and one that decodes beside extends waits for no more
than `extend_tokens` of them between two of its tokens. Sequences that want a slot wait first in, first out.

A sequence whose rows are in flight ends in `complete`: `stop` lets the step's token through, `abort` drops it. Only then is its
slot free and its KV source released, since the compute thread may be at both until the step is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from pdd.engine.base import (
    Aborted,
    Capabilities,
    EngineEvent,
    EngineLoad,
    Failed,
    Finished,
    KvSource,
    SeqId,
    StepBatch,
    Stopped,
    TokenOut,
)
from pdd.engine.chunks import next_chunk
from pdd.engine.sequence import Closing, Pass, Sequence
from pdd.engine.step import Step, StepResult, Work
from pdd.sampling import SamplingParams

_STEP_WEIGHT = 0.1  # of the newest step in the moving average


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Tokens per step. Decode rows are not counted: there is at most one a slot."""

    chunk_tokens: int = 128  # of prompts being prefilled, or a sixteenth more to end on a block's edge
    step_tokens: int = 512  # of extends and prefill chunks together
    extend_tokens: int = 256  # of extends, where `step_tokens` allows so many

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_tokens <= self.step_tokens:
            raise ValueError(f"chunk_tokens ({self.chunk_tokens}) must lie in [1, step_tokens={self.step_tokens}]")
        if self.extend_tokens < 1:
            raise ValueError(f"extend_tokens ({self.extend_tokens}) must be at least 1")


class Scheduler:
    """Commands and semantics as in `base.Engine`; times in seconds of one monotonic clock."""

    def __init__(self, capabilities: Capabilities, block_tokens: int, limits: StepLimits) -> None:
        self._capabilities = capabilities
        self._block_tokens = block_tokens
        self._limits = limits
        self._sequences: dict[SeqId, Sequence] = {}
        self._waiting: dict[SeqId, Sequence] = {}  # first in, first out
        self._running: dict[SeqId, Sequence] = {}
        self._retiring: dict[SeqId, Sequence] = {}  # over, but for what the next step takes out
        self._free = list(range(capabilities.slots))
        self._tickets = itertools.count()
        self._numbers = itertools.count(1)
        self._closed: list[EngineEvent] = []  # closing events for the next batch
        self._step: Step | None = None  # in flight
        self._step_s = 0.0

    # Commands

    def prefill(self, seq: SeqId, prompt: Ids[int], sampling: SamplingParams, kv: KvSource | None, now_s: float) -> None:
        sequence = self._create(seq, prompt, sampling, now_s, prefill=True)
        if self._admit(sequence, kv):
            sequence.passes.append(Pass(len(sequence.prompt), True, next(self._tickets)))
            self._waiting[seq] = sequence

    def open(
        self, seq: SeqId, prompt: Ids[int], sampling: SamplingParams, kv: KvSource | None, now_s: float, retain: bool = False
    ) -> None:
        sequence = self._create(seq, prompt, sampling, now_s, prefill=False, retain=retain)
        self._admit(sequence, kv)

    def extend(self, seq: SeqId, first_index: int, ids: Ids[int], then_decode: bool, score: bool = False) -> None:
        sequence = self._live(seq)
        if sequence is None:
            return
        refusal = sequence.refusal(first_index, ids) or self._foreign(f"extend at index {first_index}", ids)
        if refusal is not None:
            self._end(sequence, sequence.fail(refusal))
            return
        sequence.extend(ids, then_decode, score, next(self._tickets))
        if sequence.slot is None:
            self._waiting.setdefault(seq, sequence)

    def throttle(self, seq: SeqId, min_interval_s: float) -> None:
        sequence = self._live(seq)
        if sequence is not None:
            sequence.min_interval_s = min_interval_s

    def stop(self, seq: SeqId) -> None:
        sequence = self._live(seq)
        if sequence is None:
            return
        sequence.stopping = True
        if not sequence.in_flight:
            self._conclude(sequence, Stopped(seq, sequence.next_index))

    def abort(self, seq: SeqId) -> None:
        sequence = self._sequences.get(seq)
        if sequence is not None and sequence.verdict is None:
            self._end(sequence, Aborted(seq))

    # Steps

    def plan(self, now_s: float) -> Step | None:
        """What to compute now, or None where there is nothing to compute and nothing to tell. `complete` it before the next."""
        assert self._step is None, "the step before was not completed"
        while self._free and self._waiting:
            self._take_slot()
        works = self._decodes(now_s)
        limits, tokens = self._limits, len(works)
        extended = self._extends(works, now_s, min(limits.extend_tokens, limits.step_tokens))
        tokens += extended + self._prefills(works, now_s, limits.step_tokens - extended)
        sequences = len(works)
        self._leave(works)
        if not works and not self._closed:
            return None
        self._step = Step(next(self._numbers), now_s, tuple(works), sequences, tokens)
        return self._step

    def complete(self, result: StepResult, now_s: float) -> StepBatch:
        """Take the results of the planned step and say what happened, as `StepBatch` orders it."""
        step, self._step = self._step, None
        assert step is not None, "no step was planned"
        duration_s = now_s - step.started_s
        tokens: list[TokenOut] = []
        opening: list[EngineEvent] = []
        for work in step.works:
            sequence = self._sequences[work.seq]
            outcome = sequence.settle(work, result, step.started_s, now_s)
            opening.extend(outcome.opening)
            if outcome.token is not None:
                tokens.append(outcome.token)
            if outcome.closing is not None:
                self._conclude(sequence, outcome.closing)
        if step.sequences:
            self._step_s += (duration_s - self._step_s) * (_STEP_WEIGHT if self._step_s else 1.0)
        closing, self._closed = self._closed, []
        return StepBatch(step.number, duration_s, tuple(tokens), (*opening, *closing), step.sequences, step.computed_tokens)

    def next_due_s(self) -> float | None:
        """When the first throttled sequence may decode again; None where none is throttled."""
        return min((s.due_s() for s in self._running.values() if s.decoding), default=None)

    def load(self) -> EngineLoad:
        cells = self._capabilities.slots * self._capabilities.context_tokens
        wanting = itertools.chain(self._running.values(), self._waiting.values())
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            slots=self._capabilities.slots,
            kv_used=sum(s.computed for s in self._running.values()) / cells,
            step_s=self._step_s,
            queued_tokens=sum(s.prompt_owed for s in wanting),
        )

    # Sequences

    def _create(
        self, seq: SeqId, prompt: Ids[int], sampling: SamplingParams, now_s: float, *, prefill: bool, retain: bool = False
    ) -> Sequence:
        if seq in self._sequences:
            raise ValueError(f"sequence {seq} exists already")
        sequence = Sequence(
            seq=seq,
            prompt=tuple(prompt),
            sampling=sampling,
            prefill=prefill,
            retain=retain,
            context_tokens=self._capabilities.context_tokens,
            block_tokens=self._block_tokens,
            arrived_s=now_s,
        )
        self._sequences[seq] = sequence
        return sequence

    def _admit(self, sequence: Sequence, kv: KvSource | None) -> bool:
        """Take a sequence with the blocks it brings, or end it and say why not."""
        tokens, context = len(sequence.prompt), self._capabilities.context_tokens
        refusal = self._foreign("prompt", sequence.prompt)
        if not 1 <= tokens < context:
            refusal = f"a prompt of {tokens} tokens: this engine takes 1 to {context - 1}"
        if refusal is None and kv is not None:
            refusal = sequence.bring(kv)
        if refusal is None:
            return True
        self._end(sequence, sequence.fail(refusal))
        return False

    def _foreign(self, where: str, ids: Ids[int]) -> str | None:
        """Names an id that the model does not have, or None. A pass with one would fail for all sequences in it."""
        size = self._capabilities.vocabulary_size
        if not ids or (min(ids) >= 0 and max(ids) < size):
            return None
        foreign = next(token for token in ids if not 0 <= token < size)
        return f"{where}: token id {foreign} lies outside this model's vocabulary of {size}; is the tokenizer another model's?"

    def _live(self, seq: SeqId) -> Sequence | None:
        """The sequence, unless it is unknown or its closing event is on its way."""
        sequence = self._sequences.get(seq)
        return None if sequence is None or sequence.ending else sequence

    def _end(self, sequence: Sequence, verdict: Aborted | Failed) -> None:
        if sequence.in_flight:
            sequence.verdict = verdict
        else:
            self._close(sequence, verdict)

    def _conclude(self, sequence: Sequence, event: Closing) -> None:
        """Close a sequence, or hold its end back for the step that takes out what it retains."""
        if sequence.retired is None and sequence.retains and isinstance(event, Stopped | Finished):
            sequence.retire(event)
            self._retiring[sequence.seq] = sequence
        else:
            self._close(sequence, event)

    def _close(self, sequence: Sequence, event: Closing) -> None:
        del self._sequences[sequence.seq]
        self._waiting.pop(sequence.seq, None)
        self._retiring.pop(sequence.seq, None)
        if sequence.slot is not None:
            del self._running[sequence.seq]
            self._free.append(sequence.slot)
        self._closed.append(event)

    def _take_slot(self) -> None:
        seq = next(iter(self._waiting))
        sequence = self._waiting.pop(seq)
        sequence.slot = self._free.pop()
        self._running[seq] = sequence

    # Planning

    def _decodes(self, now_s: float) -> list[Work]:
        return [s.decode(now_s) for s in self._running.values() if s.decoding and s.due_s() <= now_s]

    def _extends(self, works: list[Work], now_s: float, room: int) -> int:
        """Add passes of extends, or as much of them as there is room for, and return the tokens they take."""
        taken = 0
        for sequence in self._with_passes(prefill=False):
            if taken == room:
                break
            count = min(sequence.owed, room - taken)
            works.append(sequence.work(count, now_s))
            taken += count
        return taken

    def _prefills(self, works: list[Work], now_s: float, left: int) -> int:
        """Add chunks of prompts, and return the tokens they take."""
        taken = 0
        chunk_tokens = self._limits.chunk_tokens
        room, most = min(left, chunk_tokens), min(left, chunk_tokens + chunk_tokens // 16)
        for sequence in self._with_passes(prefill=True):
            if room <= 0:
                break
            count = next_chunk(sequence.owed, sequence.computed, room, most, chunk_tokens, self._block_tokens)
            works.append(sequence.work(count, now_s))
            taken += count
            room -= count
            most -= count
        return taken

    def _leave(self, works: list[Work]) -> None:
        works.extend(sequence.leave() for sequence in self._retiring.values())
        self._retiring.clear()

    def _with_passes(self, *, prefill: bool) -> list[Sequence]:
        owing = [s for s in self._running.values() if s.passes and s.prefill is prefill]
        return sorted(owing, key=lambda s: s.passes[0].ticket)
