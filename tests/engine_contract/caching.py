"""The contract's part on prefix caches: prefills behind cached blocks, and what an answer leaves for the next turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdd.engine.base import Aborted, Failed, Finished, KvSource, Payload, Prefilled, SeqId, Stopped
from tests.engine_contract.case import BLOCK, SAMPLINGS, EngineCase, fresh_index, greedy
from tests.engine_contract.observer import Observer


def as_bytes(payloads: Sequence[Payload]) -> list[bytes]:
    return [bytes(payload) for payload in payloads]


def behind(observer: Observer, seq: SeqId, kv: KvSource) -> tuple[list[int], KvSource]:
    """The ids whose KV a sequence left, and that KV from the prompt's first block on."""
    retained = observer.seen[seq].retained
    assert retained is not None
    assert retained.first_block == len(kv.payloads)
    assert len(retained.ids) == BLOCK * (len(kv.payloads) + len(retained.payloads))
    return list(retained.ids), KvSource((*kv.payloads, *retained.payloads))


class CachingContract(EngineCase):
    # Prefills behind cached blocks

    @pytest.mark.parametrize("tokens", [15, 16, 17, 31, 32, 33, 64, 70])
    async def test_any_number_of_cached_blocks_gives_the_rest_of_a_whole_prefill(self, observer: Observer, tokens: int) -> None:
        prompt = self.prompt(tokens)
        whole, first = await observer.prefilled(prompt, greedy(8))
        for blocks in range((tokens - 1) // BLOCK + 1):
            seq = observer.prefill(prompt, greedy(8), KvSource(whole.payloads[:blocks]))
            closing = await observer.closing(seq)
            assert isinstance(closing, Prefilled)
            assert closing.computed_tokens == tokens - blocks * BLOCK
            assert as_bytes(observer.seen[seq].payloads) == as_bytes(whole.payloads[blocks:])
            assert [(out.index, out.token) for out in observer.seen[seq].tokens] == [(0, first)]

    @pytest.mark.parametrize("kind", SAMPLINGS)
    async def test_index_0_is_the_same_behind_cached_blocks_under_any_sampling(self, observer: Observer, kind: str) -> None:
        prompt, sampling = self.prompt(53), replace(SAMPLINGS[kind], top_logprobs=4)
        whole = observer.prefill(prompt, sampling)
        await observer.closing(whole)
        for blocks in (1, 3):
            seq = observer.prefill(prompt, sampling, KvSource(tuple(observer.seen[whole].payloads[:blocks])))
            await observer.closing(seq)
            assert [replace(out, seq=whole) for out in observer.seen[seq].tokens] == observer.seen[whole].tokens

    @pytest.mark.parametrize("tokens", [16, 20, 48])
    async def test_cached_blocks_that_leave_nothing_to_compute_fail_the_prefill(self, observer: Observer, tokens: int) -> None:
        kv, _ = await observer.prefilled(self.prompt(64), greedy(4))
        most = (tokens - 1) // BLOCK
        seq = observer.prefill(self.prompt(tokens), greedy(4), KvSource(kv.payloads[: most + 1]))
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert f"at most {most}" in str(closing.fault)

    async def test_prefills_behind_cached_blocks_share_steps_and_change_nothing(self, observer: Observer) -> None:
        prompts = [self.prompt(tokens)[::step] for tokens, step in ((90, 1), (140, 2), (400, 3), (200, 1))]
        whole = [await observer.prefilled(prompt, greedy(8)) for prompt in prompts]
        seqs = [
            observer.prefill(prompt, greedy(8), KvSource(kv.payloads[:blocks]))
            for prompt, (kv, _), blocks in zip(prompts, whole, (2, 0, 5, 1), strict=True)
        ]
        for seq, (kv, first), blocks in zip(seqs, whole, (2, 0, 5, 1), strict=True):
            await observer.closing(seq)
            assert as_bytes(observer.seen[seq].payloads) == as_bytes(kv.payloads[blocks:])
            assert observer.seen[seq].ids == [first]

    # What an answer leaves

    @pytest.mark.parametrize("tokens", [5, 15, 16, 17, 37])
    async def test_the_next_turn_continues_behind_what_was_retained(self, observer: Observer, tokens: int) -> None:
        prompt = self.prompt(tokens)
        kv, first = await observer.prefilled(prompt, greedy(40))
        seq = observer.decode(prompt, greedy(40), kv, [first], retain=True)
        await observer.closing(seq)
        ids, cached = behind(observer, seq, kv)
        text = [*prompt, first, *observer.seen[seq].ids]
        assert ids == text[: (len(text) - 1) // BLOCK * BLOCK]
        following = [*text, *self.prompt(9)]
        whole, plain = await observer.prefilled(following, greedy(12))
        assert as_bytes(cached.payloads) == as_bytes(whole.payloads[: len(cached.payloads)])
        again, first = await observer.prefilled(following, greedy(12), cached)
        assert first == plain
        decoded = [observer.decode(following, greedy(12), source, [first]) for source in (whole, again)]
        for other in decoded:
            await observer.closing(other)
        assert observer.seen[decoded[0]].ids == observer.seen[decoded[1]].ids

    @pytest.mark.parametrize("kind", SAMPLINGS)
    async def test_another_sequence_opens_with_retained_blocks_and_goes_on_as_one_engine(
        self, observer: Observer, kind: str
    ) -> None:
        prompt, sampling = self.prompt(37), SAMPLINGS[kind]
        kv, first = await observer.prefilled(prompt, sampling)
        plain = observer.decode(prompt, sampling, kv, [first], retain=True)
        await observer.closing(plain)
        ids, cached = behind(observer, plain, kv)
        expected = observer.decode(ids, sampling, None, [first])
        seq = observer.decode(ids, sampling, cached, [first])
        for other in (expected, seq):
            await observer.closing(other)
        assert observer.seen[seq].ids == observer.seen[expected].ids
        assert (await observer.extended(seq)).computed_tokens == 1

    async def test_a_stopped_sequence_leaves_what_it_had_computed(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        kv, first = await observer.prefilled(prompt, greedy(120))
        seq = observer.decode(prompt, greedy(120), kv, [first], retain=True)
        await observer.until(lambda: len(observer.seen[seq].tokens) >= 30)
        observer.engine.stop(seq)
        closing = await observer.closing(seq)
        assert isinstance(closing, Stopped)
        text = [*prompt, first, *observer.seen[seq].ids]
        assert closing.next_index == len(text) - len(prompt)
        ids, cached = behind(observer, seq, kv)
        assert ids == text[: (len(text) - 1) // BLOCK * BLOCK]
        whole, _ = await observer.prefilled(ids, greedy(4))
        assert as_bytes(cached.payloads) == as_bytes(whole.payloads)

    async def test_an_end_of_sequence_leaves_the_blocks_before_it(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(60))
        end = fresh_index(plain, 14)
        kv, _ = await observer.prefilled(prompt, greedy(60))
        sampling = replace(greedy(60), eos_ids=(plain[end],), ignore_eos=False)
        seq = observer.decode(prompt, sampling, kv, plain[:1], retain=True)
        closing = await observer.closing(seq)
        assert isinstance(closing, Finished)
        ids, _ = behind(observer, seq, kv)
        assert ids == [*prompt, *plain[:end]][: (20 + end) // BLOCK * BLOCK]

    async def test_nothing_new_is_not_retained_nor_is_what_nobody_asked_for(self, observer: Observer) -> None:
        prompt = self.prompt(33)
        kv, first = await observer.prefilled(prompt, greedy(60))
        for sampling, retain in ((greedy(10), True), (greedy(40), False)):
            seq = observer.decode(prompt, sampling, kv, [first], retain)
            assert isinstance(await observer.closing(seq), Finished)
            assert observer.seen[seq].retained is None

    async def test_an_aborted_sequence_leaves_nothing(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        kv, first = await observer.prefilled(prompt, greedy(300))
        seq = observer.decode(prompt, greedy(300), kv, [first], retain=True)
        await observer.until(lambda: len(observer.seen[seq].tokens) >= 30)
        observer.engine.abort(seq)
        assert await observer.closing(seq) == Aborted(seq)
        assert observer.seen[seq].retained is None

    async def test_neighbours_decode_on_beside_one_that_leaves(self, observer: Observer) -> None:
        prompt = self.prompt(20)
        plain = await observer.plain(prompt, greedy(60))
        kv, _ = await observer.prefilled(prompt, greedy(60))
        beside = observer.decode(prompt, greedy(60), kv, plain[:1])
        leaving = [observer.decode(prompt, greedy(20 + n), kv, plain[:1], retain=True) for n in range(4)]
        for seq in (*leaving, beside):
            await observer.closing(seq)
        assert observer.seen[beside].ids == plain[1:]
        for n, seq in enumerate(leaving):
            assert observer.seen[seq].ids == plain[1 : 20 + n]
            assert behind(observer, seq, kv)[0] == [*prompt, *plain][:32]
