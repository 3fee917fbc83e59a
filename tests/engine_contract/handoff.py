"""The contract's part on taking over: what extends may take of a step, and whether the engine agrees with what it is told."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdd.engine.base import Extended, KvSource, SeqId, TokenOut
from pdd.sampling import SamplingParams
from tests.engine_contract.case import BLOCK, SAMPLINGS, EngineCase, greedy
from tests.engine_contract.observer import Observer, observe


def told(
    observer: Observer,
    prompt: Sequence[int],
    sampling: SamplingParams,
    kv: KvSource | None,
    pieces: Sequence[Sequence[int]],
    *,
    score: bool = False,
) -> SeqId:
    """Open a sequence, give it the pieces, one extend each, and let it decode after the last."""
    seq, index = observer.new(), 0
    observer.engine.open(seq, prompt, sampling, kv)
    for number, piece in enumerate(pieces):
        observer.engine.extend(seq, index, piece, number == len(pieces) - 1, score)
        index += len(piece)
    return seq


def cut(ids: Sequence[int], *ends: int) -> list[Sequence[int]]:
    return [ids[start:end] for start, end in itertools.pairwise((0, *ends))]


def counts(extended: Sequence[Extended]) -> list[tuple[int, int]]:
    return [(event.scored_tokens, event.agreed_tokens) for event in extended]


class HandoffContract(EngineCase):
    # What extends may take of a step

    @pytest.mark.parametrize("extend_tokens", [1, 7, 32, 100_000])
    async def test_the_text_is_the_same_whatever_extends_may_take_of_a_step(self, extend_tokens: int) -> None:
        prompt, sampling = self.prompt(37), greedy(80)
        async with self.running() as engine, observe(engine) as observer:
            plain = await observer.plain(prompt, sampling)
            kv, _ = await observer.prefilled(prompt, sampling)
        async with self.running(extend_tokens) as engine, observe(engine) as observer:
            bystander = observer.decode(prompt, sampling, kv, plain[:1])
            await observer.until(lambda: bool(observer.seen[bystander].tokens))
            beside = [told(observer, prompt, sampling, kv, cut(plain, 4, 24)) for _ in range(2)]
            before = len(observer.seen[bystander].tokens)
            for seq in beside:
                await observer.extended(seq, 2)
            between = len(observer.seen[bystander].tokens) - before
            for seq in (bystander, *beside):
                await observer.closing(seq)
        for seq in beside:
            extended = observer.seen[seq].extended
            assert [(event.next_index, event.computed_tokens) for event in extended] == [(4, 37 % BLOCK + 4), (24, 20)]
            assert observer.seen[seq].ids == plain[24:]
        assert observer.seen[bystander].ids == plain[1:]
        # In each step but the one that was under way when they came, one token of the neighbour's.
        known = len(beside) * (37 % BLOCK + 24)
        assert between >= math.ceil(known / extend_tokens) - 1

    # Agreement

    @pytest.mark.parametrize("kind", SAMPLINGS)
    @pytest.mark.parametrize("tokens", [32, 33], ids=["no tail", "tail"])
    async def test_an_engine_agrees_with_every_id_of_its_equal(self, observer: Observer, kind: str, tokens: int) -> None:
        prompt, sampling = self.prompt(tokens), SAMPLINGS[kind]
        plain = await observer.plain(prompt, sampling)
        kv, _ = await observer.prefilled(prompt, sampling)
        seq = told(observer, prompt, sampling, kv, cut(plain, 9, 10, 24), score=True)
        await observer.closing(seq)
        first = 9 if tokens % BLOCK else 8  # no row of this engine's stands before index 0 where there is no tail
        assert counts(observer.seen[seq].extended) == [(first, first), (1, 1), (14, 14)]
        assert observer.seen[seq].ids == plain[24:]

    async def test_agreement_is_counted_over_the_steps_of_an_extend(self) -> None:
        prompt, sampling = self.prompt(37), SAMPLINGS["seeded"]
        async with self.running(extend_tokens=7) as engine, observe(engine) as observer:
            plain = await observer.plain(prompt, sampling)
            seq = told(observer, prompt, sampling, None, cut(plain, 24), score=True)
            await observer.closing(seq)
        assert counts(observer.seen[seq].extended) == [(24, 24)]

    async def test_an_id_the_engine_would_not_have_chosen_is_not_agreed_with_and_stands(self, observer: Observer) -> None:
        prompt = self.prompt(37)
        plain = await observer.plain(prompt, greedy(12))
        other = next(token for token in plain if token != plain[6])
        seq = told(observer, prompt, greedy(12), None, [plain[:6], [other]], score=True)
        await observer.closing(seq)
        assert counts(observer.seen[seq].extended) == [(6, 6), (1, 0)]
        unscored = observer.decode(prompt, greedy(12), None, [*plain[:6], other])
        await observer.closing(unscored)
        assert observer.seen[seq].ids == observer.seen[unscored].ids

    @pytest.mark.parametrize("kind", SAMPLINGS)
    async def test_scoring_changes_neither_text_nor_logprobs(self, observer: Observer, kind: str) -> None:
        prompt, sampling = self.prompt(37), replace(SAMPLINGS[kind], top_logprobs=4)
        plain = await observer.plain(prompt, sampling)
        found: list[list[TokenOut]] = []
        for score in (False, True):
            seq = told(observer, prompt, sampling, None, cut(plain, 5, 20), score=score)
            await observer.closing(seq)
            found.append([replace(out, seq=0) for out in observer.seen[seq].tokens])
            assert [scored for scored, _ in counts(observer.seen[seq].extended)] == ([5, 15] if score else [0, 0])
        assert found[0] == found[1]
