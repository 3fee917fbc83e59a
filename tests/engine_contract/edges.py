"""The contract's part on edges: the shortest and the longest there can be, and ends in the first places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.engine.base import Engine, Failed, Finished, FinishReason, KvSource, Prefilled
from pdd.sampling import SamplingParams
from tests.engine_contract.case import BLOCK, EngineCase, greedy
from tests.engine_contract.observer import Observer


def ends_at(engine: Engine, index: int) -> SamplingParams:
    """Sampling that chooses an end of sequence at that index, and not before."""
    eos = engine.capabilities.vocabulary_size - 1
    return replace(greedy(20), ignore_eos=False, eos_ids=(eos,), logit_bias=((eos, 100.0),), min_tokens=index)


class EdgeContract(EngineCase):
    @pytest.mark.parametrize(("chunks", "off"), [(1, -1), (1, 0), (1, 1), (2, 0)])
    async def test_prompts_around_a_multiple_of_the_chunk_continue_as_a_plain_run(
        self, observer: Observer, chunks: int, off: int
    ) -> None:
        prompt = self.prompt(chunks * self.chunk_tokens + off)
        kv, first = await observer.prefilled(prompt, greedy(12))
        assert len(kv.payloads) == len(prompt) // BLOCK
        plain = observer.decode(prompt, greedy(12), None, [first])
        handed = observer.decode(prompt, greedy(12), kv, [first])
        for seq in (plain, handed):
            assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 12)
        assert observer.seen[handed].ids == observer.seen[plain].ids
        assert (await observer.extended(handed)).computed_tokens == len(prompt) % BLOCK + 1

    async def test_a_prompt_one_short_of_the_context_has_room_for_one_token(self, observer: Observer) -> None:
        prompt = self.prompt(observer.engine.capabilities.context_tokens - 1)
        seq = observer.new()
        observer.engine.prefill(seq, prompt, greedy(20))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert (closing.finish, len(observer.seen[seq].ids)) == (FinishReason.LENGTH, 1)
        kv = KvSource(tuple(observer.seen[seq].payloads))
        decoder = observer.decode(prompt, greedy(20), kv, observer.seen[seq].ids)
        assert await observer.closing(decoder) == Finished(decoder, FinishReason.LENGTH, 1)
        assert observer.seen[decoder].ids == []

    async def test_a_prompt_two_short_of_the_context_has_room_for_two(self, observer: Observer) -> None:
        prompt = self.prompt(observer.engine.capabilities.context_tokens - 2)
        kv, first = await observer.prefilled(prompt, greedy(20))
        seq = observer.decode(prompt, greedy(20), kv, [first])
        assert await observer.closing(seq) == Finished(seq, FinishReason.LENGTH, 2)
        assert [out.index for out in observer.seen[seq].tokens] == [1]

    @pytest.mark.parametrize("max_tokens", [1, 2])
    @pytest.mark.parametrize("tokens", [1, 15, 16, 17])
    async def test_the_shortest_answers_to_the_shortest_prompts(self, observer: Observer, tokens: int, max_tokens: int) -> None:
        prompt = self.prompt(tokens)
        plain = await observer.plain(prompt, greedy(4))
        seq = observer.new()
        observer.engine.prefill(seq, prompt, greedy(max_tokens))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert closing.finish is (FinishReason.LENGTH if max_tokens == 1 else None)
        assert observer.seen[seq].ids == plain[:1]
        kv, _ = await observer.prefilled(prompt, greedy(max_tokens))
        decoder = observer.decode(prompt, greedy(max_tokens), kv, plain[:1])
        assert await observer.closing(decoder) == Finished(decoder, FinishReason.LENGTH, max_tokens)
        assert observer.seen[decoder].ids == plain[1:max_tokens]

    async def test_an_end_at_index_0_is_prefills_to_tell(self, observer: Observer) -> None:
        seq = observer.new()
        observer.engine.prefill(seq, self.prompt(33), ends_at(observer.engine, 0))
        closing = await observer.closing(seq)
        assert isinstance(closing, Prefilled)
        assert (closing.finish, observer.seen[seq].ids) == (FinishReason.STOP, [])
        assert len(observer.seen[seq].payloads) == 2

    @pytest.mark.parametrize("index", [1, 2])
    async def test_an_end_right_after_what_is_known_leaves_no_token(self, observer: Observer, index: int) -> None:
        prompt, sampling = self.prompt(33), ends_at(observer.engine, index)
        kv, first = await observer.prefilled(prompt, sampling)
        relay = observer.decode(prompt, sampling, kv, [first])
        assert await observer.closing(relay) == Finished(relay, FinishReason.STOP, index)
        known = [first, *observer.seen[relay].ids]
        assert len(known) == index
        main = observer.decode(prompt, sampling, kv, known)
        assert await observer.closing(main) == Finished(main, FinishReason.STOP, index)
        assert observer.seen[main].ids == []

    @pytest.mark.parametrize("command", ["prefill", "open", "extend"])
    async def test_an_id_outside_the_vocabulary_fails_its_sequence_alone(self, observer: Observer, command: str) -> None:
        engine, prompt = observer.engine, self.prompt(20)
        foreign = engine.capabilities.vocabulary_size
        plain = await observer.plain(prompt, greedy(60))
        neighbour = observer.decode(prompt, greedy(60), None, plain[:1])
        await observer.until(lambda: bool(observer.seen[neighbour].tokens))
        seq = observer.new()
        if command == "prefill":
            engine.prefill(seq, [*prompt, foreign], greedy(4))
        else:
            engine.open(seq, [*prompt, foreign] if command == "open" else prompt, greedy(4), None)
        if command == "extend":
            engine.extend(seq, 0, [plain[0], foreign], then_decode=True)
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert f"token id {foreign}" in str(closing.fault)
        await observer.closing(neighbour)
        assert observer.seen[neighbour].ids == plain[1:]
