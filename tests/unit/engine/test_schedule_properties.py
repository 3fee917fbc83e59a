"""Any interleaving of commands, steps and time, over a real sim model: what the scheduler says holds, and nothing stays held."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pdd.engine.base import Extended, Finished, KvSource, Prefilled
from pdd.engine.compute import compute_step
from pdd.engine.schedule import Scheduler, StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.reference import continuation, prompt_blocks
from pdd.engine.step import Step, StepResult
from pdd.sampling import SamplingParams
from tests.engine_contract.observer import Record

SLOTS = 2
MAX_TOKENS = 12
BUDGETS = [1, 5, 11, 1000]
SAMPLING = SamplingParams(max_tokens=MAX_TOKENS, seed=0, temperature=0.0, ignore_eos=True)
FOREVER_S = 1e9


class Engines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = SimModel(SimConfig(slots=SLOTS, context_tokens=128))
        self.limits = StepLimits(chunk_tokens=9, step_tokens=20)
        self.start()
        self.record = Record()
        self.now_s = 0.0
        self.step: Step | None = None
        self.prompts: dict[int, list[int]] = {}
        self.known: dict[int, int] = {}  # output ids given to sequences that take more
        self.prefills: set[int] = set()
        self.imported: set[int] = set()
        self.retaining: set[int] = set()
        self.given: dict[int, list[tuple[int, int, bool]]] = {}  # extends not told yet: [first, end), and whether it is scored
        self.given_whole: set[int] = set()  # whose last token came in an extend
        self.scored: dict[int, bool] = {}  # whether a sequence's newest row was computed under score
        self.throttled: set[int] = set()
        self.decoding: set[int] = set()  # unthrottled, so they take part in every step

    def start(self) -> None:
        self.scheduler = Scheduler(self.model.capabilities, 16, self.limits)

    @initialize(extend_tokens=st.sampled_from(BUDGETS))
    def budget(self, extend_tokens: int) -> None:
        self.limits = StepLimits(chunk_tokens=9, step_tokens=20, extend_tokens=extend_tokens)
        self.start()

    def new(self, tokens: int) -> int:
        seq = len(self.prompts) + 1
        self.prompts[seq] = [seq, *range(1, tokens)]
        return seq

    def text(self, seq: int) -> list[int]:
        return continuation(self.prompts[seq], MAX_TOKENS, ignore_eos=True)

    @rule(tokens=st.integers(1, 50), given=st.integers(0, 3))
    def prefill(self, tokens: int, given: int) -> None:
        seq = self.new(tokens)
        self.prefills.add(seq)
        given = self.record.given[seq] = min(given, (tokens - 1) // 16)
        kv = KvSource(prompt_blocks(self.prompts[seq])[:given])
        self.scheduler.prefill(seq, self.prompts[seq], SAMPLING, kv, self.now_s)

    @rule(tokens=st.integers(1, 50), imported=st.booleans(), retain=st.booleans())
    def open(self, tokens: int, imported: bool, retain: bool) -> None:
        seq = self.new(tokens)
        self.known[seq] = 0
        kv = KvSource(prompt_blocks(self.prompts[seq])) if imported else None
        if imported:
            self.imported.add(seq)
        if retain:
            self.retaining.add(seq)
        self.scheduler.open(seq, self.prompts[seq], SAMPLING, kv, self.now_s, retain)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(1, 8), then_decode=st.booleans(), score=st.booleans())
    def extend(self, data: st.DataObject, count: int, then_decode: bool, score: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.known)))
        first = self.known[seq]
        ids = self.text(seq)[first : first + count]
        self.known[seq] += len(ids)
        then_decode |= self.known[seq] == MAX_TOKENS
        self.scheduler.extend(seq, first, ids, then_decode, score)
        self.given.setdefault(seq, []).append((first, first + len(ids), score))
        if self.known[seq] == MAX_TOKENS:
            self.given_whole.add(seq)
        if then_decode:
            del self.known[seq]

    @precondition(lambda self: self.known)
    @rule(data=st.data(), wrong=st.sampled_from([-1, 1, 5]))
    def extend_wrongly(self, data: st.DataObject, wrong: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.known)))
        self.scheduler.extend(seq, self.known.pop(seq) + wrong, [1], then_decode=True)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), interval_s=st.sampled_from([0.0, 3.0, FOREVER_S]))
    def throttle(self, data: st.DataObject, interval_s: float) -> None:
        seq = data.draw(st.sampled_from(sorted(self.prompts)))
        self.throttled.add(seq)
        self.decoding.discard(seq)
        self.scheduler.throttle(seq, interval_s)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), abort=st.booleans())
    def end(self, data: st.DataObject, abort: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.prompts)))
        self.known.pop(seq, None)
        self.decoding.discard(seq)
        if abort:
            self.scheduler.abort(seq)
        else:
            self.scheduler.stop(seq)

    @precondition(lambda self: self.step is None)
    @rule()
    def plan(self) -> None:
        self.step = self.scheduler.plan(self.now_s)
        if self.step is not None:
            self.holds(self.step)

    def holds(self, step: Step) -> None:
        slots = [work.slot for work in step.works]
        assert len(set(slots)) == len(slots)
        assert sum(len(work.rows) for work in step.works) <= self.limits.step_tokens + SLOTS
        extends = [work for work in step.works if self.given.get(work.seq)]
        assert sum(len(work.rows) for work in extends) <= self.limits.extend_tokens
        assert self.decoding <= {work.seq for work in step.works if len(work.rows) == 1 or not work.rows}

    @precondition(lambda self: self.step is not None)
    @rule(took_s=st.sampled_from([0.0, 1.0]))
    def complete(self, took_s: float) -> None:
        assert self.step is not None
        result = compute_step(self.model, self.step) if self.step.works else StepResult()
        assert not result.faults
        self.step = None
        self.now_s += took_s
        batch = self.scheduler.complete(result, self.now_s)
        self.record.take(batch)
        for event in batch.events:
            if isinstance(event, Extended):
                self.told(event)
        made = {out.seq for out in batch.tokens} - self.prefills - self.throttled
        self.decoding = {seq for seq in self.decoding | made if self.record.seen[seq].closing is None}

    def told(self, event: Extended) -> None:
        """One Extended for each extend, in order. What was given is the text, so the sim agrees with all that it scored."""
        first, end, score = self.given[event.seq].pop(0)
        assert event.next_index == end
        # The row before the first id: of the prompt's tail, if that was computed here, or the last of the extend before.
        before = self.scored.get(event.seq, event.seq not in self.imported or len(self.prompts[event.seq]) % 16 != 0)
        assert event.scored_tokens == (end - first - (not before) if score else 0)
        assert event.agreed_tokens == event.scored_tokens
        self.scored[event.seq] = score

    @rule(passed_s=st.sampled_from([0.5, 5.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @invariant()
    def tokens_are_the_text(self) -> None:
        for seq, seen in self.record.seen.items():
            text = self.text(seq)
            assert [out.token for out in seen.tokens] == [text[out.index] for out in seen.tokens]

    @invariant()
    def slots_are_bounded(self) -> None:
        load = self.scheduler.load()
        assert 0 <= load.running <= SLOTS
        assert 0 <= load.kv_used <= 1

    def drain(self) -> None:
        for _ in range(500):
            if self.step is None:
                self.plan()
            if self.step is None:
                return
            self.complete(1.0)
        raise AssertionError("there is always something to do")

    def left(self, seq: int) -> None:
        """A sequence that had all of its text left all blocks behind its prompt's, and any that left some left them right."""
        retained, closing, prompt = self.record.seen[seq].retained, self.record.seen[seq].closing, self.prompts[seq]
        first = len(prompt) // 16
        if isinstance(closing, Finished):
            # The last token has KV only where it was given, and not sampled.
            full = (len(prompt) + MAX_TOKENS - (seq not in self.given_whole)) // 16 > first
            assert (retained is not None) == (full and seq in self.retaining)
        if retained is not None:
            assert seq in self.retaining
            assert retained.first_block == first
            assert retained.ids == (*prompt, *self.text(seq))[: len(retained.ids)]
            assert retained.payloads == prompt_blocks(retained.ids)[first:]

    def teardown(self) -> None:
        for seq in self.prompts:
            self.scheduler.throttle(seq, 0.0)
        for seq in self.known:
            self.scheduler.stop(seq)  # those that would wait for more ids
        self.drain()
        assert sorted(self.record.seen) == sorted(self.prompts)
        for seq, seen in self.record.seen.items():
            assert seen.closing is not None, seq
            if isinstance(seen.closing, Prefilled):
                assert tuple(seen.payloads) == prompt_blocks(self.prompts[seq])[self.record.given[seq] :]
                assert len(seen.tokens) == 1
            self.left(seq)
        load = self.scheduler.load()
        assert (load.running, load.waiting, load.queued_tokens, load.kv_used) == (0, 0, 0, 0.0)
        assert self.scheduler.next_due_s() is None
        for seq in (-1, -2):
            self.scheduler.prefill(seq, [1], SAMPLING, None, self.now_s)
        step = self.scheduler.plan(self.now_s)
        assert step is not None
        assert {work.slot for work in step.works} == set(range(SLOTS))


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
