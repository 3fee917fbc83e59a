"""One sequence as the scheduler sees it: the ids it knows, how many of them are in its KV, and what it still owes.

Used by `schedule` alone. Gives out no slot and has no clock. Known ids are the prompt and the output, which `extend` gives or
sampling makes; `computed` of them are in the KV. One that isn't lies in a pass, or is the newest of a sequence that decodes:

    |<------------ prompt ------------>|<------------- output ------------->|
    |<------- computed ------->|<-- passes[0] -->|<-- passes[1] -->|

A sequence that retains its output has one step more than its text: it `retires` with the end it came to, `leave` takes out its
blocks, and only then is the end told.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pdd.engine.base import (
    Aborted,
    EngineEvent,
    EngineFault,
    Extended,
    Failed,
    Finished,
    FinishReason,
    KvBlocks,
    KvSource,
    Prefilled,
    Retained,
    SeqId,
    Stopped,
    TokenOut,
)
from pdd.engine.model import Row
from pdd.engine.step import Draw, StepResult, Work
from pdd.sampling import History, Sampled, SamplingParams


@dataclass(frozen=True, slots=True)
class Pass:
    """Known tokens to compute together: a prefill's prompt, or the ids of one `extend` and what is missing before them."""

    end: int  # tokens in the KV after it
    then_decode: bool  # sample after the last one
    ticket: int  # order of arrival, over all sequences
    score: bool = False  # say what the sampler would have chosen for the ids


Closing = Prefilled | Stopped | Finished | Aborted | Failed


class Outcome(NamedTuple):
    """What a step did for one sequence; with `closing` it is over."""

    opening: tuple[EngineEvent, ...] = ()
    token: TokenOut | None = None
    closing: Closing | None = None


@dataclass(slots=True, kw_only=True)
class Sequence:
    seq: SeqId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    prefill: bool  # ends with index 0; else it lives until it is stopped or finishes
    retain: bool  # its output's blocks are wanted when it stops or finishes
    context_tokens: int
    block_tokens: int
    arrived_s: float
    kv: KvSource | None = None  # until it is imported
    computed: int = 0  # counts what `kv` will bring
    output: list[int] = field(default_factory=list)
    passes: deque[Pass] = field(default_factory=deque)
    decoding: bool = False
    slot: int | None = None
    entered: bool = False  # the slot is cleared and the KV imported
    started_s: float | None = None  # of its first step
    exported: int = 0  # blocks
    pass_tokens: int = 0  # computed for passes[0] by earlier steps
    pass_s: float = 0.0  # their engine time
    chosen: dict[int, int] = field(default_factory=dict)  # by output index: what the sampler chose from rows computed under score
    min_interval_s: float = 0.0
    drawn_s: float = float("-inf")  # start of the step that sampled last
    in_flight: bool = False
    stopping: bool = False
    verdict: Aborted | Failed | None = None  # what it ends with when the step under way is done
    retired: Stopped | Finished | None = None  # what it ends with when its blocks are out
    limit: int = field(init=False)  # output tokens it can have at most
    history: History = field(init=False)  # of its next token; grows with the output

    def __post_init__(self) -> None:
        self.limit = min(self.sampling.max_tokens, self.context_tokens - len(self.prompt))
        self.history = History(self.prompt, self.output)

    @property
    def next_index(self) -> int:
        return len(self.output)

    @property
    def ending(self) -> bool:
        return self.stopping or self.verdict is not None or self.retired is not None

    @property
    def retains(self) -> bool:
        """It has blocks to leave."""
        return self.retain and self.computed // self.block_tokens > len(self.prompt) // self.block_tokens

    @property
    def full(self) -> bool:
        """No further token can be sampled."""
        return len(self.output) >= self.limit

    @property
    def owed(self) -> int:
        """Tokens of the pass at the front that are not computed yet."""
        return self.passes[0].end - self.computed if self.passes else 0

    @property
    def prompt_owed(self) -> int:
        return max(0, len(self.prompt) - self.computed)

    def bring(self, kv: KvSource) -> str | None:
        """Count the prompt's leading blocks as computed and told; they come with the first step. Or say why it can't be them."""
        given, n = len(kv.payloads), len(self.prompt)
        full, most = n // self.block_tokens, (n - 1) // self.block_tokens
        if self.prefill and given > most:
            return f"prefill: {given} blocks given of a prompt of {n} tokens; give at most {most}: its last is computed"
        if not self.prefill and given != full:
            return f"open: a prompt of {n} tokens has {full} full blocks, not {given}"
        self.kv, self.exported, self.computed = kv, given, given * self.block_tokens
        return None

    def refusal(self, first_index: int, ids: Ids[int]) -> str | None:
        """Why an `extend` cannot be taken, or None."""
        end = first_index + len(ids)
        if self.prefill:
            return "extend: this sequence is a prefill, which ends with index 0; open another to decode"
        if self.decoding or (self.passes and self.passes[-1].then_decode):
            return f"extend at index {first_index}: the sequence decodes by itself already and takes no more ids"
        if first_index != self.next_index:
            return f"extend at index {first_index}: the next index the sequence lacks is {self.next_index}"
        if not ids:
            return f"extend at index {first_index}: no ids; send at least one"
        if end > self.limit:
            return (
                f"extend to index {end}: past max_tokens {self.sampling.max_tokens} or the context of {self.context_tokens} "
                f"tokens, of which the prompt takes {len(self.prompt)}"
            )
        if not self.sampling.ignore_eos and not set(self.sampling.eos_ids).isdisjoint(ids):
            return f"extend at index {first_index}: the ids hold an end of sequence, after which nothing can follow"
        return None

    def extend(self, ids: Ids[int], then_decode: bool, score: bool, ticket: int) -> None:
        # In the output from now on: of what runs elsewhere only `draw` reads it, and a sequence that draws takes no more ids.
        self.output.extend(ids)
        self.passes.append(Pass(len(self.prompt) + len(self.output), then_decode, ticket, score))

    def due_s(self) -> float:
        """When a decoding sequence may sample again."""
        return self.drawn_s + self.min_interval_s

    def decode(self, now_s: float) -> Work:
        """Take part in the step that starts at `now_s` with the newest token, and sample the next."""
        assert self.slot is not None
        self.in_flight, self.drawn_s = True, now_s
        row = Row(self.slot, self.computed, self.output[-1], True)
        return Work(self.seq, self.slot, (row,), draw=Draw(self.sampling, len(self.output), self.history))

    def work(self, count: int, now_s: float) -> Work:
        """Take part in the step that starts at `now_s` with the next `count` tokens of the pass at the front."""
        assert self.slot is not None
        end = self.computed + count
        draws = end == self.passes[0].end and self.passes[0].then_decode and not self.full
        scored = self._scored(end, draws)
        n = len(self.prompt)
        rows = tuple(
            Row(self.slot, position, self._token(position), position + 1 - n in scored or (draws and position == end - 1))
            for position in range(self.computed, end)
        )
        work = Work(
            self.seq,
            self.slot,
            rows,
            clear=not self.entered,
            kv=self.kv,
            scores=self._scores(scored),
            draw=Draw(self.sampling, self.next_index, self.history) if draws else None,
            blocks=self._blocks(end),
        )
        self.in_flight = self.entered = True
        if draws:
            self.drawn_s = now_s
        if self.started_s is None:
            self.started_s = now_s
        return work

    def retire(self, end: Stopped | Finished) -> None:
        """Be over but for the blocks that it `leave`s."""
        self.retired, self.decoding = end, False
        self.passes.clear()

    def leave(self) -> Work:
        """Take part in the next step by giving out what it retains."""
        assert self.slot is not None
        self.in_flight = True
        return Work(self.seq, self.slot, (), blocks=(len(self.prompt) // self.block_tokens, self.computed // self.block_tokens))

    def settle(self, work: Work, result: StepResult, started_s: float, now_s: float) -> Outcome:
        """Take this sequence's share of the results of a step that ran from `started_s` to `now_s`."""
        self.in_flight = False
        if self.verdict is not None:
            return Outcome(closing=self.verdict)
        if self.retired is not None:
            return Outcome(self._retained(work, result), closing=self.retired)
        if self.seq in result.faults:
            return Outcome(closing=Failed(self.seq, result.faults[self.seq]))
        self.computed += len(work.rows)
        if not self.decoding:
            return self._settle_pass(work, result, started_s, now_s)
        token, finish = self._take(result.sampled[self.seq])
        return Outcome(token=token, closing=self._closing(finish))

    def fail(self, text: str) -> Failed:
        return Failed(self.seq, EngineFault(text))

    def _settle_pass(self, work: Work, result: StepResult, started_s: float, now_s: float) -> Outcome:
        self.kv = None
        opening: list[EngineEvent] = []
        if work.blocks is not None:
            self.exported = work.blocks[1]
            opening.append(KvBlocks(self.seq, work.blocks[0], result.blocks[self.seq]))
        if work.scores:
            self.chosen.update(zip((draw.index for draw in work.scores), result.scored[self.seq], strict=True))
        ended = self._end_pass(len(work.rows), now_s - started_s)
        token, finish = None, None
        if work.draw is not None:
            token, finish = self._take(result.sampled[self.seq])
        elif self.decoding:
            finish = FinishReason.LENGTH  # told to decode where there was nothing left to sample
        if self.prefill and ended is not None:
            assert self.started_s is not None
            queued_s, compute_s = self.started_s - self.arrived_s, now_s - self.started_s
            prefilled = Prefilled(self.seq, finish, ended.computed_tokens, queued_s, compute_s)
            return Outcome(tuple(opening), token, prefilled)
        if ended is not None:
            opening.append(ended)
        return Outcome(tuple(opening), token, self._closing(finish))

    def _retained(self, work: Work, result: StepResult) -> tuple[Retained, ...]:
        """Nothing where the export failed: the text is whole, and the cache can do without."""
        if self.seq in result.faults:
            return ()
        assert work.blocks is not None
        first, last = work.blocks
        ids = tuple(itertools.islice(itertools.chain(self.prompt, self.output), last * self.block_tokens))
        return (Retained(self.seq, ids, first, result.blocks[self.seq]),)

    def _closing(self, finish: FinishReason | None) -> Stopped | Finished | None:
        if finish is not None:
            return Finished(self.seq, finish, self.next_index)
        return Stopped(self.seq, self.next_index) if self.stopping else None

    def _end_pass(self, tokens: int, seconds: float) -> Extended | None:
        """Count `tokens` towards the pass at the front; where they were its last, take it off and say so."""
        self.pass_tokens += tokens
        self.pass_s += seconds
        if self.owed:
            return None
        ended = self.passes.popleft()
        self.decoding = ended.then_decode
        next_index = ended.end - len(self.prompt)
        extended = Extended(self.seq, next_index, self.pass_tokens, self.pass_s, *self._agreement(next_index, ended.score))
        self.pass_tokens, self.pass_s = 0, 0.0
        return extended

    def _scored(self, end: int, draws: bool) -> range:
        """Output indices to choose for from the rows that take the KV to `end` tokens; that of a draw is not one of them.

        The last row of a pass chooses for an id that is not known yet: it may come with the next one.
        """
        if not (self.passes and self.passes[0].score):
            return range(0)
        n = len(self.prompt)
        return range(max(0, self.computed + 1 - n), min(self.limit, end + 1 - n - draws))

    def _scores(self, scored: range) -> tuple[Draw, ...]:
        if not scored:
            return ()
        params = replace(self.sampling, top_logprobs=None)
        # Copies of the output: it may grow by further ids while the step is computed.
        return tuple(Draw(params, index, History(self.prompt, self.output[:index])) for index in scored)

    def _agreement(self, next_index: int, asked: bool) -> tuple[int, int]:
        """Ids below `next_index` that were scored, and those chosen alike. What was chosen for them is dropped."""
        chosen = {index: self.chosen.pop(index) for index in tuple(self.chosen) if index < next_index}
        if not asked:
            return 0, 0
        return len(chosen), sum(self.output[index] == token for index, token in chosen.items())

    def _take(self, sampled: Sampled) -> tuple[TokenOut | None, FinishReason | None]:
        """Append a sampled token unless it ends the sequence, and say whether the sequence is finished."""
        index, params = self.next_index, self.sampling
        if sampled.token in params.eos_ids and not params.ignore_eos and index >= params.min_tokens:
            return None, FinishReason.STOP
        self.output.append(sampled.token)
        finish = FinishReason.LENGTH if self.full else None
        return TokenOut(self.seq, index, sampled.token, sampled.logprobs), finish

    def _token(self, position: int) -> int:
        n = len(self.prompt)
        return self.prompt[position] if position < n else self.output[position - n]

    def _blocks(self, end: int) -> tuple[int, int] | None:
        """Full blocks of the prompt that exist once `end` tokens are computed and were not exported yet."""
        last = min(end, len(self.prompt)) // self.block_tokens
        return (self.exported, last) if self.prefill and last > self.exported else None
