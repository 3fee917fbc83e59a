"""What every engine must do. Subclass `EngineContract`, give it engines and prompts, and run it.

Texts are compared with those of the same engine run plainly: one prefill for index 0, then a sequence without imported KV.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pdd.engine.base import (
    Aborted,
    Engine,
    Failed,
    Finished,
    FinishReason,
    Prefilled,
    StepBatch,
    Stopped,
    TokenOut,
)
from pdd.sampling import SamplingParams
from tests.engine_contract.caching import CachingContract
from tests.engine_contract.case import BLOCK, FOREVER_S, fresh_index, greedy
from tests.engine_contract.edges import EdgeContract
from tests.engine_contract.handoff import HandoffContract
from tests.engine_contract.observer import Observer


class EngineContract(CachingContract, HandoffContract, EdgeContract):
    # Prefill

    @pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 300])
    async def test_prefill_emits_each_full_block_once_and_index_0(self, observer: Observer, tokens: int) -> None:
        seq = observer.new()
        observer.engine.prefill(seq, self.prompt(tokens), greedy(8))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert (closing.finish, closing.computed_tokens) == (None, tokens)
        assert len(observer.seen[seq].payloads) == tokens // BLOCK
        assert [out.index for out in observer.seen[seq].tokens] == [0]

    async def test_prefill_of_one_token_answers_ends_with_length(self, observer: Observer) -> None:
        seq = observer.new()
        observer.engine.prefill(seq, self.prompt(20), greedy(1))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert closing.finish is FinishReason.LENGTH
        assert len(observer.seen[seq].tokens) == 1

    async def test_prefill_whose_index_0_is_eos_emits_no_token(self, observer: Observer) -> None:
        _, first = await observer.prefilled(self.prompt(20), greedy(8))
        seq = observer.new()
        observer.engine.prefill(seq, self.prompt(20), replace(greedy(8), eos_ids=(first,), ignore_eos=False))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert closing.finish is FinishReason.STOP
        assert observer.seen[seq].tokens == []

    async def test_prefills_at_once_give_what_they_give_alone(self, observer: Observer) -> None:
        prompts = [self.prompt(tokens) for tokens in (40, 150, 33)]
        alone = [await observer.prefilled(prompt, greedy(8)) for prompt in prompts]
        together = await asyncio.gather(*(observer.prefilled(prompt, greedy(8)) for prompt in prompts))
        assert [[bytes(p) for p in kv.payloads] for kv, _ in together] == [[bytes(p) for p in kv.payloads] for kv, _ in alone]
        assert [first for _, first in together] == [first for _, first in alone]

    # Decode and extend

    @pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32])
    async def test_imported_kv_continues_as_a_plain_run(self, observer: Observer, tokens: int) -> None:
        prompt = self.prompt(tokens)
        plain = await observer.plain(prompt, greedy(20))
        kv, first = await observer.prefilled(prompt, greedy(20))
        seq = observer.decode(prompt, greedy(20), kv, [first])
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 20)
        assert [first, *observer.seen[seq].ids] == plain
        assert (await observer.extended(seq)).computed_tokens == tokens % BLOCK + 1

    @pytest.mark.parametrize("split", [[24], [1, 23], [8, 8, 8], [5, 1, 17, 1]])
    async def test_known_ids_in_any_split_give_the_same_continuation(self, observer: Observer, split: list[int]) -> None:
        prompt = self.prompt(37)
        plain = await observer.plain(prompt, greedy(40))
        kv, _ = await observer.prefilled(prompt, greedy(40))
        seq, index = observer.new(), 0
        observer.engine.open(seq, prompt, greedy(40), kv)
        for count in split:
            observer.engine.extend(seq, index, plain[index : index + count], then_decode=index + count == 24)
            index += count
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 40)
        assert observer.seen[seq].ids == plain[24:]
        assert [e.next_index for e in observer.seen[seq].extended] == [sum(split[: n + 1]) for n in range(len(split))]
        assert [e.computed_tokens for e in observer.seen[seq].extended] == [37 % BLOCK + split[0], *split[1:]]

    async def test_extends_may_come_after_the_ones_before_were_computed(self, observer: Observer) -> None:
        prompt = self.prompt(37)
        plain = await observer.plain(prompt, greedy(30))
        kv, _ = await observer.prefilled(prompt, greedy(30))
        seq = observer.new()
        observer.engine.open(seq, prompt, greedy(30), kv)
        observer.engine.extend(seq, 0, plain[:4], then_decode=False)
        await observer.extended(seq, 1)
        observer.engine.extend(seq, 4, plain[4:6], then_decode=False)
        await observer.extended(seq, 2)
        observer.engine.extend(seq, 6, plain[6:7], then_decode=True)
        await observer.closing(seq)
        assert observer.seen[seq].ids == plain[7:]

    @pytest.mark.parametrize("first_index", [0, 2, 9])
    async def test_extend_at_a_wrong_index_fails_and_names_both(self, observer: Observer, first_index: int) -> None:
        seq = observer.new()
        observer.engine.open(seq, self.prompt(20), greedy(30), None)
        observer.engine.extend(seq, 0, self.prompt(5), then_decode=False)
        await observer.extended(seq)
        observer.engine.extend(seq, first_index, self.prompt(1), then_decode=True)
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert str(first_index) in str(closing.fault)
        assert "5" in str(closing.fault)

    async def test_open_alone_takes_no_slot(self, observer: Observer) -> None:
        for _ in range(observer.engine.capabilities.slots + 1):
            observer.engine.open(observer.new(), self.prompt(20), greedy(8), None)
        await observer.prefilled(self.prompt(20), greedy(8))
        assert (observer.engine.load().running, observer.engine.load().waiting) == (0, 0)

    # Ends

    async def test_eos_ends_the_text_and_is_not_emitted(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(30))
        end = fresh_index(plain, 2)
        sampling = replace(greedy(30), eos_ids=(plain[end],), ignore_eos=False)
        seq = observer.decode(prompt, sampling, None, plain[:1])
        assert await observer.closing(seq) == Finished(seq, FinishReason.STOP, end)
        assert observer.seen[seq].ids == plain[1:end]

    async def test_min_tokens_withholds_eos(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(30))
        end = fresh_index(plain, 2)
        sampling = replace(greedy(30), eos_ids=(plain[end],), ignore_eos=False, min_tokens=end + 1)
        seq = observer.decode(prompt, sampling, None, plain[:1])
        closing = await observer.closing(seq)
        assert isinstance(closing, Finished)
        assert closing.next_index > end
        assert observer.seen[seq].ids[: end - 1] == plain[1:end]
        assert plain[end] not in observer.seen[seq].ids

    async def test_ignore_eos_goes_on(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(12))
        seq = observer.decode(prompt, replace(greedy(12), eos_ids=tuple(plain)), None, plain[:1])
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 12)
        assert observer.seen[seq].ids == plain[1:]

    async def test_the_context_ends_the_text(self, observer: Observer) -> None:
        prompt, context = self.prompt(60), observer.engine.capabilities.context_tokens
        known = (self.prompt(400) * (context // 400 + 1))[: context - 60 - 5]
        seq = observer.decode(prompt, greedy(10 * context), None, known)
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, context - 60)
        assert len(observer.seen[seq].tokens) == 5

    async def test_a_prompt_that_fills_the_context_fails(self, observer: Observer) -> None:
        context = observer.engine.capabilities.context_tokens
        seq = observer.new()
        observer.engine.prefill(seq, (self.prompt(400) * (context // 400 + 1))[:context], greedy(4))
        assert isinstance(await observer.closing(seq), Failed)

    # Control

    async def test_stop_is_answered_after_the_last_token(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(120))
        seq = observer.decode(prompt, greedy(120), None, plain[:1])
        await observer.until(lambda: len(observer.seen[seq].tokens) >= 3)
        observer.engine.stop(seq)
        closing = await observer.closing(seq)
        assert isinstance(closing, Stopped)
        assert closing.next_index == 1 + len(observer.seen[seq].tokens)
        assert observer.seen[seq].ids == plain[1 : closing.next_index]

    async def test_what_one_stopped_another_continues(self, observer: Observer) -> None:
        prompt = self.prompt(45)
        plain = await observer.plain(prompt, greedy(60))
        kv, first = await observer.prefilled(prompt, greedy(60))
        relay = observer.decode(prompt, greedy(60), kv, [first])
        await observer.until(lambda: len(observer.seen[relay].tokens) >= 4)
        observer.engine.stop(relay)
        await observer.closing(relay)
        eager = [first, *observer.seen[relay].ids]
        main = observer.decode(prompt, greedy(60), kv, eager)
        await observer.closing(main)
        assert [*eager, *observer.seen[main].ids] == plain

    async def test_throttle_holds_one_back_and_not_its_neighbour(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(60))
        held = observer.new()
        observer.engine.open(held, prompt, greedy(60), None)
        observer.engine.throttle(held, FOREVER_S)
        observer.engine.extend(held, 0, plain[:1], then_decode=True)
        await observer.extended(held)
        free = observer.decode(prompt, greedy(30), None, plain[:1])
        await observer.closing(free)
        assert observer.seen[held].ids == plain[1:2]
        observer.engine.throttle(held, 0)
        await observer.closing(held)
        assert observer.seen[held].ids == plain[1:]

    async def test_stop_is_answered_while_throttled(self, observer: Observer) -> None:
        seq = observer.new()
        observer.engine.open(seq, self.prompt(20), greedy(60), None)
        observer.engine.throttle(seq, FOREVER_S)
        observer.engine.extend(seq, 0, self.prompt(1), then_decode=True)
        await observer.extended(seq)
        observer.engine.stop(seq)
        assert await observer.closing(seq) == Stopped(seq, 2)

    @pytest.mark.parametrize("stage", ["prefilling", "opened", "waiting", "extended", "decoding"])
    async def test_abort_frees_everything_at_every_stage(self, observer: Observer, stage: str) -> None:
        engine, slots = observer.engine, observer.engine.capabilities.slots
        plain = await observer.plain(self.prompt(33), greedy(20))
        holders = [observer.new() for _ in range(slots if stage == "waiting" else 0)]
        for holder in holders:
            engine.open(holder, self.prompt(18), greedy(60), None)
            engine.extend(holder, 0, self.prompt(2), then_decode=False)
            await observer.extended(holder)
        seq = observer.new()
        if stage == "prefilling":
            engine.prefill(seq, self.prompt(400), greedy(60))
            await observer.until(lambda: bool(observer.seen[seq].payloads))
        else:
            engine.open(seq, self.prompt(33), greedy(300), None)
        if stage in ("waiting", "extended", "decoding"):
            engine.extend(seq, 0, plain[:1], then_decode=stage == "decoding")
        if stage in ("extended", "decoding"):
            await observer.extended(seq)
        for victim in (seq, *holders):
            engine.abort(victim)
            assert await observer.closing(victim) == Aborted(victim)
        assert (engine.load().running, engine.load().waiting, engine.load().kv_used) == (0, 0, 0.0)
        again = await asyncio.gather(*(observer.plain(self.prompt(33), greedy(20)) for _ in range(slots)))
        assert again == [plain] * slots

    async def test_commands_for_an_ended_sequence_are_ignored(self, observer: Observer) -> None:
        engine = observer.engine
        kv, first = await observer.prefilled(self.prompt(20), greedy(3))
        seq = observer.decode(self.prompt(20), greedy(3), kv, [first])
        await observer.closing(seq)
        engine.extend(seq, 3, [first], then_decode=True)
        engine.throttle(seq, 1.0)
        engine.stop(seq)
        engine.abort(seq)
        await observer.prefilled(self.prompt(20), greedy(3))
        assert observer.seen[seq].closing == Finished(seq, FinishReason.LENGTH, 3)

    # Company

    async def test_more_sequences_than_slots_wait_and_finish(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(12))
        seqs = [observer.decode(prompt, greedy(12), None, plain[:1]) for _ in range(observer.engine.capabilities.slots + 3)]
        for seq in seqs:
            await observer.closing(seq)
        assert [observer.seen[seq].ids for seq in seqs] == [plain[1:]] * len(seqs)

    async def test_neighbours_that_come_and_go_change_nothing(self, observer: Observer) -> None:
        engine, prompt = observer.engine, self.prompt(50)
        plain = await observer.plain(prompt, greedy(60))
        kv, first = await observer.prefilled(prompt, greedy(60))
        seq = observer.decode(prompt, greedy(60), kv, [first])
        await observer.until(lambda: len(observer.seen[seq].tokens) >= 5)
        await observer.prefilled(self.prompt(90), greedy(4))
        dropped = observer.decode(self.prompt(30), greedy(60), None, plain[:3])
        await observer.extended(dropped)
        engine.abort(dropped)
        await observer.closing(dropped)
        wide = observer.decode(self.prompt(7), greedy(45), None, plain[:40])
        await observer.closing(wide)
        await observer.closing(seq)
        assert [first, *observer.seen[seq].ids] == plain

    async def test_seeded_sampling_is_the_same_wherever_it_is_taken_over(self, observer: Observer) -> None:
        prompt = self.prompt(33)
        sampling = SamplingParams(max_tokens=24, seed=7, temperature=0.9, top_p=0.9, frequency_penalty=0.5, ignore_eos=True)
        plain = await observer.plain(prompt, sampling)
        kv, _ = await observer.prefilled(prompt, sampling)
        seq = observer.decode(prompt, sampling, kv, plain[:9])
        await observer.closing(seq)
        assert observer.seen[seq].ids == plain[9:]

    async def test_logprobs_come_with_every_token_that_asks(self, observer: Observer) -> None:
        sampling = replace(greedy(5), top_logprobs=3)
        seq = observer.decode(self.prompt(20), sampling, None, self.prompt(1))
        await observer.closing(seq)
        for out in observer.seen[seq].tokens:
            assert out.logprobs is not None
            assert len(out.logprobs.top) == 3
            assert out.logprobs.top[0] == (out.token, out.logprobs.logprob)

    # The reader

    async def test_a_slow_reader_loses_nothing(self, engine: Engine) -> None:
        seq = 1
        engine.open(seq, self.prompt(20), greedy(30), None)
        engine.extend(seq, 0, self.prompt(1), then_decode=True)
        batches: list[StepBatch] = []
        async with asyncio.timeout(60):
            async for batch in engine.steps():
                batches.append(batch)
                if any(isinstance(event, Finished) for event in batch.events):
                    break
                await asyncio.sleep(0.005)  # as slow as it takes for the engine to be ahead
        tokens: list[TokenOut] = [out for batch in batches for out in batch.tokens]
        assert [out.index for out in tokens] == list(range(1, 30))
        assert [batch.step for batch in batches] == list(range(1, len(batches) + 1))
