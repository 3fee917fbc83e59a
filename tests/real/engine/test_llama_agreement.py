"""Whether an engine agrees with the ids it is told: all of them where the KV is right, fewer where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdd.engine.base import KvSource
from pdd.model.card import ModelCard
from pdd.sampling import SamplingParams
from tests.engine_contract.handoff import counts, told
from tests.real.engine.engines import llama
from tests.real.engine.texts import PROSE

pytestmark = pytest.mark.real

OUTPUT = 48
SAMPLING = {
    "greedy": SamplingParams(max_tokens=OUTPUT, seed=1, temperature=0.0, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=OUTPUT, seed=1234, temperature=0.8, ignore_eos=True),
}


@pytest.mark.parametrize("kind", SAMPLING)
async def test_a_zeroed_block_lowers_agreement(model_dir: Path, card: ModelCard, kind: str) -> None:
    prompt, sampling = card.encode(PROSE)[:70], SAMPLING[kind]
    async with llama(model_dir, 1, 256) as near:
        plain = await near.plain(prompt, sampling)
        kv, _ = await near.prefilled(prompt, sampling)
    zeroed = [
        KvSource(tuple(bytes(len(payload)) if number == block else payload for number, payload in enumerate(kv.payloads)))
        for block in range(len(kv.payloads))
    ]
    async with llama(model_dir, 5, 256) as far:
        found = []
        for source in (kv, *zeroed):
            seq = told(far, prompt, sampling, source, [plain[: OUTPUT - 1]], score=True)
            await far.extended(seq)
            found += counts(far.seen[seq].extended)
    assert [scored for scored, _ in found] == [OUTPUT - 1] * len(found)
    whole, *damaged = [agreed for _, agreed in found]
    assert whole == OUTPUT - 1
    assert max(damaged) < OUTPUT - 1
