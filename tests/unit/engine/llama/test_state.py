"""States are built here by hand, field by field, as llama.cpp writes them; no llama.cpp is needed."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.engine.llama.state import Bytes, StateError, StateShape, compose_state, slice_blocks

SHAPE = StateShape(layers=3, row_bytes=8, streams=4, block_tokens=4)


def rows_of(shape: StateShape, tokens: int, key: int = 0) -> Bytes:
    """Shape (layers, keys or values, tokens, row_bytes)."""
    size = (shape.layers, 2, tokens, shape.row_bytes)
    return np.random.Generator(np.random.Philox(key=key)).integers(0, 256, size, np.uint8)


def state_of(rows: Bytes, shape: StateShape, sequence: int) -> bytearray:
    tokens = rows.shape[2]
    blob = struct.pack("<IiI", 0xAF143CD8, sequence, shape.streams) + bytes(4 * sequence) + struct.pack("<I", tokens)
    for position in range(tokens):
        blob += struct.pack("<iIi", position, 1, sequence)
    blob += struct.pack("<II", 0, shape.layers)
    for part in (0, 1):
        for layer in range(shape.layers):
            blob += struct.pack("<iQ", 1, shape.row_bytes) + rows[layer, part].tobytes()
    return bytearray(blob + bytes(4 * (shape.streams - 1 - sequence)))


def as_bytes(blob: bytes | bytearray) -> Bytes:
    return np.frombuffer(blob, np.uint8)


shapes = st.builds(
    StateShape,
    layers=st.integers(1, 4),
    row_bytes=st.sampled_from([2, 6, 16]),
    streams=st.integers(1, 5),
    block_tokens=st.integers(1, 5),
)


@settings(deadline=None)
@given(shapes, st.data())
def test_blocks_are_layer_then_keys_and_values_then_token(shape: StateShape, data: st.DataObject) -> None:
    tokens, sequence = data.draw(st.integers(1, 17)), data.draw(st.integers(0, shape.streams - 1))
    last = data.draw(st.integers(0, tokens // shape.block_tokens))
    first = data.draw(st.integers(0, last))
    rows = rows_of(shape, tokens)
    blocks = slice_blocks(as_bytes(state_of(rows, shape, sequence)), shape, sequence, first, last)
    expected = [rows[:, :, i * shape.block_tokens : (i + 1) * shape.block_tokens].tobytes() for i in range(first, last)]
    assert [bytes(block) for block in blocks] == expected
    assert all(len(block) == shape.block_bytes and block.readonly for block in blocks)


@pytest.mark.parametrize("start", [1, 3])
def test_a_state_may_begin_with_a_later_block(start: int) -> None:
    rows = rows_of(SHAPE, 4 * SHAPE.block_tokens)
    blob = state_of(rows, SHAPE, 1)
    for cell in range(4 * SHAPE.block_tokens):
        struct.pack_into("<i", blob, 5 * 4 + 12 * cell, cell + start * SHAPE.block_tokens)
    blocks = slice_blocks(as_bytes(blob), SHAPE, 1, start + 1, start + 3, start_block=start)
    assert [bytes(block) for block in blocks] == [rows[:, :, i * 4 : (i + 1) * 4].tobytes() for i in (1, 2)]
    with pytest.raises(StateError, match="cell 0"):
        slice_blocks(as_bytes(blob), SHAPE, 1, start + 1, start + 3)
    with pytest.raises(StateError, match=f"asked of a state of 16 tokens from {4 * start} on"):
        slice_blocks(as_bytes(blob), SHAPE, 1, start - 1, start + 1, start_block=start)


@settings(deadline=None)
@given(shapes, st.data())
def test_a_composed_state_is_what_llama_cpp_would_write(shape: StateShape, data: st.DataObject) -> None:
    source, target = data.draw(st.tuples(*[st.integers(0, shape.streams - 1)] * 2))
    count = data.draw(st.integers(1, 4))
    rows = rows_of(shape, count * shape.block_tokens)
    blocks = slice_blocks(as_bytes(state_of(rows, shape, source)), shape, source, 0, count)
    assert compose_state(blocks, shape, target).tobytes() == state_of(rows, shape, target)


def test_streams_of_the_two_contexts_may_differ() -> None:
    few, many = SHAPE, StateShape(SHAPE.layers, SHAPE.row_bytes, 9, SHAPE.block_tokens)
    rows = rows_of(few, 8)
    blocks = slice_blocks(as_bytes(state_of(rows, few, 3)), few, 3, 0, 2)
    assert compose_state(blocks, many, 7).tobytes() == state_of(rows, many, 7)


SEQUENCE, TOKENS = 1, 6
CELLS_AT = 5 * 4
DATA_AT = CELLS_AT + TOKENS * 12
PARTS_AT = DATA_AT + 8
PART_BYTES = 12 + TOKENS * SHAPE.row_bytes


def word(offset: int, value: int) -> Callable[[bytearray], bytearray]:
    def change(blob: bytearray) -> bytearray:
        struct.pack_into("<I", blob, offset, value)
        return blob

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (word(0, 0xAF143CD9), "magic"),
        (word(4, 0), "sequence id"),
        (word(8, 5), "streams"),
        (word(12, 1), "cells of earlier sequences"),
        (word(16, TOKENS - 1), "bytes"),
        (word(16, 2**32 - 1), "bytes"),
        (word(CELLS_AT + 12, 2), "cell 1"),  # a hole in the positions
        (word(CELLS_AT + 4, 2), "cell 0"),  # shared by two sequences
        (word(CELLS_AT + 8, 0), "cell 0"),  # of another sequence
        (word(DATA_AT, 1), "transposed"),
        (word(DATA_AT + 4, 2), "layers"),
        (word(PARTS_AT, 8), "type of rows"),  # quantised keys
        (word(PARTS_AT + 5 * PART_BYTES, 8), "type of rows"),  # quantised values of the last layer
        (word(PARTS_AT + PART_BYTES + 4, 16), "bytes of a row"),
        (lambda blob: word(len(blob) - 4, 1)(blob), "cells of later sequences"),
        (lambda blob: blob[:-1], "bytes"),
        (lambda blob: blob + b"\0", "bytes"),
        (lambda blob: blob[:10], "too few"),
        (lambda blob: bytearray(), "too few"),
    ],
)
def test_another_layout_is_refused_by_name(change: Callable[[bytearray], bytearray], named: str) -> None:
    blob = change(state_of(rows_of(SHAPE, TOKENS), SHAPE, SEQUENCE))
    with pytest.raises(StateError, match=named):
        slice_blocks(as_bytes(blob), SHAPE, SEQUENCE, 0, 1)


@given(st.binary(max_size=400))
def test_no_blob_is_half_read(blob: bytes) -> None:
    with pytest.raises(StateError):
        slice_blocks(as_bytes(blob), SHAPE, SEQUENCE, 0, 1)


@pytest.mark.parametrize(("first", "last"), [(0, 2), (-1, 1), (1, 0)])
def test_blocks_that_are_not_computed_are_refused(first: int, last: int) -> None:
    with pytest.raises(StateError, match="asked of a state of 6 tokens"):
        slice_blocks(as_bytes(state_of(rows_of(SHAPE, TOKENS), SHAPE, SEQUENCE)), SHAPE, SEQUENCE, first, last)


@pytest.mark.parametrize("size", [0, SHAPE.block_bytes - 1, SHAPE.block_bytes + 1])
def test_a_block_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(StateError, match=f"block 1 has {size} bytes, expected {SHAPE.block_bytes}"):
        compose_state([bytes(SHAPE.block_bytes), bytes(size)], SHAPE, 0)
