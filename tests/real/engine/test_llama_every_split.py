"""However an answer is cut between prefill, relay and main, it is the answer of one process, among neighbours that come and go.

24 cuts are tried, chosen so that most pairs of values meet; PDD_SPLITS=384 tries all there are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.engine.base import KvSource
from pdd.model.card import ModelCard
from tests.engine_contract.observer import Observer
from tests.real.engine.engines import llama
from tests.real.engine.splits import PROMPTS, Split, pairwise_splits
from tests.real.engine.test_llama_exactness import SAMPLING, churn, continued, reference
from tests.real.engine.texts import PROSE

OUTPUT = 200
AT_ONCE = 8

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


async def test_every_split_gives_the_text_of_one_process(model_dir: Path, card: ModelCard) -> None:
    splits = pairwise_splits(int(os.environ.get("PDD_SPLITS", "24")))
    prompts = {name: card.encode(text)[-tokens:] for name, text, tokens in PROMPTS}
    plain = {
        (name, kind): await reference(model_dir, prompts[name], replace(SAMPLING[kind], max_tokens=OUTPUT))
        for name, kind in sorted({(split.prompt, split.sampling) for split in splits})
    }
    busy = card.encode(PROSE)
    async with (
        llama(model_dir, AT_ONCE + 2, 640, chunk_tokens=48) as near,
        llama(model_dir, AT_ONCE + 2, 640, chunk_tokens=32) as far,
    ):
        for start in range(0, len(splits), AT_ONCE):
            batch = splits[start : start + AT_ONCE]
            async with churn(near, busy), churn(far, busy):
                found = await asyncio.gather(*(_answer(near, far, prompts[one.prompt], one) for one in batch))
            for split, answer in zip(batch, found, strict=True):
                assert answer == plain[split.prompt, split.sampling], str(split)


async def _answer(near: Observer, far: Observer, prompt: Sequence[int], split: Split) -> list[tuple[int, object]]:
    """Prefill and relay on `near`, main on `far`, which scores the ids that it is told in several pieces and agrees with all."""
    sampling = replace(SAMPLING[split.sampling], max_tokens=OUTPUT)
    kv, _ = await near.prefilled(prompt, sampling)
    eager = await _relayed(near, prompt, split, kv)
    ids = [token for token, _ in eager]
    return [*eager, *await continued(far, prompt, sampling, kv, split.pieces(ids))]


async def _relayed(near: Observer, prompt: Sequence[int], split: Split, kv: KvSource) -> list[tuple[int, object]]:
    """Index 0 from prefill and what the relay makes after it, up to the eager tokens of the split."""
    sampling = replace(SAMPLING[split.sampling], max_tokens=split.handed)
    seq = near.new()
    near.engine.prefill(seq, prompt, sampling)
    await near.closing(seq)
    first = near.seen[seq].tokens
    if split.handed == 1:
        return [(out.token, out.logprobs) for out in first]
    decoding = near.decode(prompt, sampling, kv, [first[0].token])
    await near.closing(decoding)
    return [(out.token, out.logprobs) for out in (*first, *near.seen[decoding].tokens)]
