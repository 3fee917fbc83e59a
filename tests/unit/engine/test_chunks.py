from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pdd.engine.chunks import next_chunk

BLOCK = 16


def alone(owed: int, chunk_tokens: int) -> list[int]:
    """The chunks of a prompt that has every step to itself."""
    chunks: list[int] = []
    while owed:
        chunks.append(next_chunk(owed, sum(chunks), chunk_tokens, chunk_tokens, chunk_tokens, BLOCK))
        owed -= chunks[-1]
    return chunks


@pytest.mark.parametrize(
    ("owed", "chunks"),
    [
        (1, [1]),
        (512, [512]),
        (513, [256, 257]),
        (520, [256, 264]),
        (1025, [336, 352, 337]),
        (1536, [512, 512, 512]),
    ],
)
def test_a_prompt_goes_in_near_equal_chunks(owed: int, chunks: list[int]) -> None:
    assert alone(owed, 512) == chunks


@given(st.integers(1, 5000), st.integers(2, 40).map(lambda blocks: blocks * BLOCK))
def test_chunks_are_as_few_as_can_be_and_end_on_edges_and_none_is_a_tail(owed: int, chunk_tokens: int) -> None:
    chunks = alone(owed, chunk_tokens)
    fewest = -(-owed // chunk_tokens)
    assert len(chunks) == fewest
    assert all(chunk % BLOCK == 0 for chunk in chunks[:-1])
    assert all(abs(chunk - owed / fewest) <= 2 * BLOCK for chunk in chunks)


@given(
    owed=st.integers(1, 2000),
    computed=st.integers(0, 2000),
    room=st.integers(1, 300),
    more=st.integers(0, 40),
    chunk_tokens=st.integers(1, 600),
    block_tokens=st.sampled_from([1, 16, 512]),
)
def test_a_chunk_is_never_empty_and_never_more_than_there_is_or_may_be(
    owed: int, computed: int, room: int, more: int, chunk_tokens: int, block_tokens: int
) -> None:
    count = next_chunk(owed, computed, room, room + more, chunk_tokens, block_tokens)
    assert 1 <= count <= min(owed, room + more)
    assert count <= room or count == owed or (computed + count) % block_tokens == 0


def test_room_between_two_edges_is_rounded_to_the_nearer_where_the_step_allows() -> None:
    assert [next_chunk(400, 0, room, 512, 512, BLOCK) for room in (247, 248, 255, 256)] == [240, 256, 256, 256]
    assert [next_chunk(400, 0, room, 255, 512, BLOCK) for room in (247, 248, 255)] == [240, 240, 240]


def test_less_than_a_block_is_not_left_over_for_want_of_as_little_room() -> None:
    assert next_chunk(260, 0, 258, 264, 512, BLOCK) == 260
    assert next_chunk(260, 0, 258, 259, 512, BLOCK) == 256


def test_room_for_less_than_a_block_is_taken_all_the_same() -> None:
    assert next_chunk(400, 32, 5, 5, 512, BLOCK) == 5
