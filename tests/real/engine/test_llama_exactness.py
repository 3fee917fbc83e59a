"""The same bits wherever a sequence is computed: the promise on which a handoff without a seam rests.

A plain run on an engine of one slot is the reference. Tokens and the logprobs of the five likeliest are compared as exact floats:
they differ at once where a logit differs in its last bits, long before another token is chosen.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdd.engine.base import KvSource, TokenOut
from pdd.model.card import ModelCard
from pdd.sampling import SamplingParams
from tests.engine_contract.observer import Observer
from tests.real.engine.engines import llama
from tests.real.engine.texts import CODE, KOREAN, PROSE

pytestmark = pytest.mark.real

OUTPUT = 32
SAMPLING = {
    "greedy": SamplingParams(max_tokens=OUTPUT, seed=1, temperature=0.0, ignore_eos=True, top_logprobs=5),
    "seeded": SamplingParams(max_tokens=OUTPUT, seed=1234, temperature=0.8, top_p=0.95, ignore_eos=True, top_logprobs=5),
}


@asynccontextmanager
async def churn(observer: Observer, ids: Sequence[int]) -> AsyncIterator[None]:
    """Two neighbours at a time are prefilled, extended, decoded and aborted, one after another, as long as the context lasts."""

    async def neighbour(number: int) -> None:
        turn = number
        while True:
            prompt = ids[turn % 40 : turn % 40 + 20 + 37 * (turn % 5)]
            _, first = await observer.prefilled(prompt, SAMPLING["greedy"])
            seq = observer.decode(prompt, SAMPLING["seeded"], None, [first, *ids[: turn % 7]])
            await observer.until(lambda seq=seq, turn=turn: len(observer.seen[seq].tokens) > turn % 4)  # type: ignore[misc]
            observer.engine.abort(seq)
            await observer.closing(seq)
            turn += 2

    tasks = [asyncio.create_task(neighbour(number)) for number in range(2)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


def outputs(outs: Sequence[TokenOut]) -> list[tuple[int, object]]:
    return [(out.token, out.logprobs) for out in outs]


async def reference(model_dir: Path, prompt: Sequence[int], sampling: SamplingParams) -> list[tuple[int, object]]:
    async with llama(model_dir, slots=1, context_tokens=1024, chunk_tokens=512) as alone:
        plain = alone.new()
        alone.engine.prefill(plain, prompt, sampling)
        await alone.closing(plain)
        first = alone.seen[plain].tokens
        seq = alone.decode(prompt, sampling, None, alone.seen[plain].ids)
        await alone.closing(seq)
        return outputs([*first, *alone.seen[seq].tokens])


async def continued(
    observer: Observer, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource, pieces: Sequence[Sequence[int]]
) -> list[tuple[int, object]]:
    """What an engine that is told the ids of `pieces`, one extend each, decodes after them. Where there are several, they are
    scored, and it agrees with all of them."""
    seq, index, score = observer.new(), 0, len(pieces) > 1
    observer.engine.open(seq, prompt, sampling, kv)
    for number, piece in enumerate(pieces):
        observer.engine.extend(seq, index, piece, number == len(pieces) - 1, score)
        index += len(piece)
        extended = await observer.extended(seq, number + 1)
        # Index 0 is predicted by the prompt's tail; where there is none, nobody predicts it.
        scored = len(piece) - (number == 0 and len(prompt) % 16 == 0) if score else 0
        assert (extended.scored_tokens, extended.agreed_tokens) == (scored, scored)
    await observer.closing(seq)
    return outputs(observer.seen[seq].tokens)


CUTS = ([1], [7, 8, 17], [1, 2, 3, 26])


@pytest.mark.parametrize(
    ("text", "tokens", "kind"),
    [
        pytest.param(PROSE + CODE, 301, "greedy", id="prose-and-code-greedy"),
        pytest.param(KOREAN, 61, "seeded", id="korean-seeded"),
    ],
)
async def test_a_text_taken_over_is_that_of_one_engine(
    model_dir: Path, card: ModelCard, text: str, tokens: int, kind: str
) -> None:
    prompt, sampling, busy = card.encode(text)[-tokens:], SAMPLING[kind], card.encode(PROSE)
    plain = await reference(model_dir, prompt, sampling)
    ids = [token for token, _ in plain]
    async with llama(model_dir, 3, 512, chunk_tokens=48) as near, churn(near, busy):
        kv, first = await near.prefilled(prompt, sampling)
    assert first == ids[0]
    takeovers = [[ids[a:b] for a, b in itertools.pairwise([0, *cuts])] for cuts in CUTS]
    async with llama(model_dir, len(CUTS) + 2, 768, chunk_tokens=32) as far, churn(far, busy):
        found = await asyncio.gather(*(continued(far, prompt, sampling, kv, pieces) for pieces in takeovers))
    assert found == [plain[cuts[-1] :] for cuts in CUTS]


async def test_kv_is_the_same_bytes_however_it_is_prefilled(model_dir: Path, card: ModelCard) -> None:
    ids = card.encode(PROSE)
    prompt, found = ids[:200], []
    for slots, context_tokens, chunk_tokens in ((3, 1024, 512), (4, 512, 16), (5, 256, 37)):
        async with llama(model_dir, slots, context_tokens, chunk_tokens) as observer, churn(observer, ids):
            kv, _ = await observer.prefilled(prompt, SAMPLING["greedy"])
            found.append([bytes(payload) for payload in kv.payloads])
    assert len(found[0]) == len(prompt) // 16
    assert found[0] == found[1] == found[2]
    assert {len(payload) for payload in found[0]} == {observer.engine.layout.block_bytes}
