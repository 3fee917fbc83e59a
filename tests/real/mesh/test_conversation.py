"""The second turn of a conversation over a slow line: only its new blocks cross, and its text is that of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from pdd.model.card import ModelCard
from pdd.v1 import inference_pb2_grpc
from tests.real.mesh.asking import BLOCK_BYTES, BLOCK_TOKENS, ask
from tests.real.mesh.conftest import Continue
from tests.real.mesh.support import Mesh, crossed_bytes, running_mesh, set_link_rate

pytestmark = [pytest.mark.real, pytest.mark.processes, pytest.mark.timeout(300)]

RATE_MBIT = 20.0
TOKENS = 56
OPENED_AT = 24
# What crosses besides KV: prompts and eager tokens as ids, stream and frame headers, pings.
OVERHEAD_SHARE = 0.02
OVERHEAD_BYTES = 16_000

FIRST = (
    "<|im_start|>user\nMy grandmother kept bees behind her house, and every summer we drove up the valley to help her with the "
    "honey. I would like to keep bees myself, but I live in a small flat in the middle of a town, and my neighbours are afraid "
    "of anything that stings. What should I think of before I begin, and whom should I ask?<|im_end|>\n<|im_start|>assistant\n"
)
SECOND = (
    "<|im_end|>\n<|im_start|>user\nThank you. Now suppose that the neighbours agree, and that I may use the flat roof: which "
    "three things should I buy first, and what will they cost me in the first year?<|im_end|>\n<|im_start|>assistant\n"
)


async def open_link(mesh: Mesh, tokens: int) -> None:
    """Have main take over in time, however fast this machine's relay is."""
    if OPENED_AT <= tokens < 2 * OPENED_AT:
        await set_link_rate(mesh, None)


async def test_only_the_new_blocks_of_a_second_turn_cross(model_dir: Path, card: ModelCard, alone: Continue) -> None:
    first = card.encode(FIRST)
    said = alone(first, TOKENS)
    second = [*first, *said, *card.encode(SECOND)]
    # All that was computed, which the last token of an answer never is.
    main_has = (len(first) + TOKENS - 1) // BLOCK_TOKENS
    new_bytes = (len(second) // BLOCK_TOKENS - main_has) * BLOCK_BYTES

    async with (
        running_mesh(model_dir, "auto", "auto") as mesh,
        grpc.aio.insecure_channel(mesh.grpc_address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        await set_link_rate(mesh, None)
        opening = await ask(stub, first, TOKENS)
        assert opening.tokens == said
        assert opening.sources[-1] == "main-0"
        assert opening.timeline.wan_kv_bytes == len(first) // BLOCK_TOKENS * BLOCK_BYTES
        before = await crossed_bytes(mesh)
        assert before > opening.timeline.wan_kv_bytes

        await set_link_rate(mesh, RATE_MBIT)
        answer = await ask(stub, second, TOKENS, on_tokens=partial(open_link, mesh))
        crossed = await crossed_bytes(mesh) - before
    expected = alone(second, TOKENS)
    assert answer.tokens == expected
    assert answer.text == card.tokenizer.decode(expected, skip_special_tokens=True).rstrip("\ufffd")
    assert answer.sources[-1] == "main-0"
    assert answer.usage.cached_tokens == len(first) // BLOCK_TOKENS * BLOCK_TOKENS
    assert answer.timeline.wan_kv_bytes == new_bytes
    assert new_bytes < crossed < new_bytes * (1 + OVERHEAD_SHARE) + OVERHEAD_BYTES
