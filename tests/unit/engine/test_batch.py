import asyncio
from collections.abc import Sequence

import pytest

from pdd.engine.base import EngineFault, Failed, Finished, FinishReason, KvSource, Payload, StepBatch
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import Compute, InlineCompute, ThreadCompute
from pdd.engine.model import Logits, Row, StepCost
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.reference import continuation
from pdd.sampling import SamplingParams
from tests.engine_contract.observer import observe

GREEDY = SamplingParams(max_tokens=20, seed=0, temperature=0.0, ignore_eos=True)
BAD = 666  # a token that breaks the model
COMPUTES = [InlineCompute, ThreadCompute]


class FragileModel(SimModel):
    """A sim that fails as told."""

    closed = False

    def __init__(self, load_fault: EngineFault | None = None) -> None:
        super().__init__(SimConfig(slots=4, context_tokens=256))
        self.load_fault = load_fault

    def load(self) -> None:
        if self.load_fault is not None:
            raise self.load_fault

    def close(self) -> None:
        self.closed = True

    def forward(self, rows: Sequence[Row]) -> tuple[list[Logits], StepCost]:
        if any(row.token == BAD for row in rows):
            raise ZeroDivisionError("bad row")
        return super().forward(rows)

    def export_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        if first_block == 1:
            raise EngineFault("no room to export")
        return super().export_kv(slot, first_block, last_block)


@pytest.mark.parametrize("compute", COMPUTES)
async def test_a_model_that_does_not_load_raises_at_entry_and_is_closed(compute: type[Compute]) -> None:
    model = FragileModel(EngineFault("no weights"))
    with pytest.raises(EngineFault, match="no weights"):
        async with BatchEngine(model, StepLimits(), compute()):
            pass
    assert model.closed


@pytest.mark.parametrize("compute", COMPUTES)
async def test_a_failing_pass_fails_its_sequences_and_the_engine_goes_on(compute: type[Compute]) -> None:
    async with BatchEngine(FragileModel(), StepLimits(), compute()) as engine, observe(engine) as observer:
        prompt = list(range(20))
        seq = observer.decode(prompt, GREEDY, None, [BAD])
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert "ZeroDivisionError('bad row')" in str(closing.fault)
        assert await observer.plain(prompt, GREEDY) == continuation(prompt, 20, ignore_eos=True)


async def test_a_failing_export_fails_its_sequence_alone() -> None:
    async with BatchEngine(FragileModel(), StepLimits(16, 64), InlineCompute()) as engine, observe(engine) as observer:
        neighbour = observer.decode(list(range(12)), GREEDY, None, [1])
        seq = observer.new()
        engine.prefill(seq, list(range(40)), GREEDY)
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert "no room to export" in str(closing.fault)
        assert await observer.closing(neighbour) == Finished(neighbour, FinishReason.LENGTH, 20)


async def test_a_failing_export_of_what_is_retained_leaves_the_answer_whole() -> None:
    async with BatchEngine(FragileModel(), StepLimits(), InlineCompute()) as engine, observe(engine) as observer:
        seq = observer.decode(list(range(20)), GREEDY, None, [1], retain=True)
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 20)
        assert observer.seen[seq].retained is None
        assert len(observer.seen[seq].ids) == 19


async def test_a_step_that_only_exports_runs_no_pass() -> None:
    class Counting(SimModel):
        passes = 0

        def forward(self, rows: Sequence[Row]) -> tuple[list[Logits], StepCost]:
            self.passes += 1
            return super().forward(rows)

    model = Counting(SimConfig(slots=4, context_tokens=256))
    async with BatchEngine(model, StepLimits(), InlineCompute()) as engine, observe(engine) as observer:
        seq = observer.decode(list(range(20)), GREEDY, None, [1], retain=True)
        await observer.closing(seq)
        assert observer.seen[seq].retained is not None
        assert (observer.steps, model.passes) == (20, 19)


async def test_a_failing_draw_fails_its_sequence_alone() -> None:
    async with BatchEngine(FragileModel(), StepLimits(), InlineCompute()) as engine, observe(engine) as observer:
        broken = SamplingParams(max_tokens=20, seed=0, temperature=0.0, logit_bias=((0, "much"),))  # type: ignore[arg-type]
        seq = observer.decode([1, 2], broken, None, [1])
        neighbour = observer.decode([1, 2], GREEDY, None, [1])
        assert isinstance(await observer.closing(seq), Failed)
        assert await observer.closing(neighbour) == Finished(neighbour, FinishReason.LENGTH, 20)


async def test_a_failing_score_fails_its_sequence_alone() -> None:
    async with BatchEngine(FragileModel(), StepLimits(), InlineCompute()) as engine, observe(engine) as observer:
        broken = SamplingParams(max_tokens=20, seed=0, temperature=0.0, logit_bias=((0, "much"),))  # type: ignore[arg-type]
        seq, neighbour = observer.new(), observer.new()
        for number, sampling in ((seq, broken), (neighbour, GREEDY)):
            engine.open(number, [1, 2], sampling, None)
            engine.extend(number, 0, continuation([1, 2], 5, ignore_eos=True), then_decode=False, score=True)
        assert isinstance(await observer.closing(seq), Failed)
        extended = await observer.extended(neighbour)
        assert (extended.scored_tokens, extended.agreed_tokens) == (5, 5)


@pytest.mark.parametrize("compute", COMPUTES)
async def test_leaving_ends_the_stream_of_batches_and_closes_the_model(compute: type[Compute]) -> None:
    model = FragileModel()
    async with BatchEngine(model, StepLimits(), compute()) as engine:
        engine.open(1, [1], GREEDY, None)
        engine.extend(1, 0, [1], then_decode=True)
        steps = engine.steps()
        await anext(steps)
    assert len([batch async for batch in steps]) < 18
    assert model.closed


async def test_leaving_at_once_ends_the_stream_for_every_reader() -> None:
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        pass
    async with asyncio.timeout(10):
        assert [[batch async for batch in engine.steps()] for _ in range(2)] == [[], []]


async def test_the_engine_waits_for_its_reader() -> None:
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        seq = 1
        engine.open(seq, [1], SamplingParams(max_tokens=1000, seed=0, temperature=0.0, ignore_eos=True), None)
        engine.extend(seq, 0, [1], then_decode=True)
        held = -1.0
        while held != (held := engine.load().kv_used):
            for _ in range(20):
                await asyncio.sleep(0)
        assert engine.load().running == 1
        batches: list[StepBatch] = []
        async for batch in engine.steps():
            batches.append(batch)
            if not engine.load().running:
                break
        assert len(batches) > 900


async def test_a_loop_that_breaks_is_told_to_the_reader() -> None:
    class NoResults(InlineCompute):
        async def step(self, work: object) -> None:  # type: ignore[override]
            raise RuntimeError("lost its results")

    async with BatchEngine(SimModel(SimConfig()), StepLimits(), NoResults()) as engine:
        engine.open(1, [1], GREEDY, KvSource(()))
        engine.extend(1, 0, [1], then_decode=True)
        with pytest.raises(EngineFault, match="restart"):
            _ = [batch async for batch in engine.steps()]


async def test_commands_while_a_step_is_computed_take_effect_after_it() -> None:
    async with BatchEngine(SimModel(SimConfig(slots=1)), StepLimits(), ThreadCompute()) as engine, observe(engine) as observer:
        prompt = list(range(40))
        text = continuation(prompt, 20, ignore_eos=True)
        for _ in range(30):
            dropped = observer.decode(prompt, GREEDY, None, [1])
            await observer.extended(dropped)
            engine.abort(dropped)
            kept = observer.decode(prompt, GREEDY, None, text[:1])
            await observer.closing(kept)
            assert observer.seen[kept].ids == text[1:]
