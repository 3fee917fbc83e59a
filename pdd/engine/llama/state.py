"""llama.cpp's state of one sequence, to and from `dense.f16` blocks.

Called by `llama.model` with the bytes of `llama_state_seq_get_data`, and for those of `llama_state_seq_set_data`. Pure: no
llama.cpp here. The format carries no version of its own, so every field is checked against what this file knows, and the size
must come out to the byte: a blob of another layout is refused, never half read.

    u32 magic · i32 sequence id · u32 streams · per stream up to the sequence's own: u32 cells (0 but for its own)
    per cell: i32 position · u32 1 · i32 sequence id
    u32 0 (values are not transposed) · u32 layers
    per layer: i32 type (1 is f16) · u64 bytes per row · one row of keys per cell
    per layer: the same for values
    per stream after the sequence's own: u32 0

A row holds one token's kv_heads x head_size elements. A block is `block_tokens` tokens, all of it: layer, K then V, token, row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdd.engine.base import EngineFault, Payload

Bytes = NDArray[np.uint8]

MAGIC = 0xAF143CD8
F16 = 1  # ggml's number of the type

_WORD = 4  # bytes
_PART_HEADER = np.dtype([("type", "<i4"), ("row_bytes", "<u8")], align=False)
_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")], align=False)
_ADVICE = "this build reads states as llama-cpp-python 0.3.36 writes them for plain f16 attention caches"


class StateError(EngineFault):
    """A state blob or a block is not of the one layout this engine knows."""


@dataclass(frozen=True, slots=True)
class StateShape:
    layers: int
    row_bytes: int  # of one token's keys (and of its values) in one layer
    streams: int  # sequences of the context
    block_tokens: int

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.block_tokens * self.row_bytes


def slice_blocks(
    blob: Bytes, shape: StateShape, sequence: int, first_block: int, last_block: int, start_block: int = 0
) -> tuple[memoryview, ...]:
    """Blocks [first_block, last_block) of a sequence's state that begins with `start_block`, as read-only views of one buffer.

    Raises StateError.
    """
    start = start_block * shape.block_tokens
    state = _parse(blob, shape, sequence, start)
    first, last = first_block * shape.block_tokens - start, last_block * shape.block_tokens - start
    if not 0 <= first <= last <= state.tokens:
        raise StateError(f"blocks [{first_block}, {last_block}) asked of a state of {state.tokens} tokens from {start} on")
    count = last_block - first_block
    rows = state.rows[:, :, first:last].reshape(2, shape.layers, count, shape.block_tokens, shape.row_bytes)
    blocks = np.ascontiguousarray(rows.transpose(2, 1, 0, 3, 4)).reshape(count, shape.block_bytes)
    blocks.flags.writeable = False
    return tuple(block.data for block in blocks)


def compose_state(payloads: Sequence[Payload], shape: StateShape, sequence: int) -> Bytes:
    """The state of `sequence` that holds the blocks from position 0 on. Raises StateError where a block's size is wrong."""
    for number, payload in enumerate(payloads):
        if len(payload) != shape.block_bytes:
            raise StateError(f"block {number} has {len(payload)} bytes, expected {shape.block_bytes}")
    tokens = len(payloads) * shape.block_tokens
    state = _State(np.empty(_State.size(shape, sequence, tokens), np.uint8), shape, sequence, tokens)
    state.header[:] = 0
    state.header[:3] = MAGIC, sequence, shape.streams
    state.header[-1] = tokens
    state.cells["position"] = np.arange(tokens)
    state.cells["sequences"] = 1
    state.cells["sequence"] = sequence
    state.data_header[:] = 0, shape.layers
    state.part_headers["type"], state.part_headers["row_bytes"] = F16, shape.row_bytes
    state.trailer[:] = 0
    rows = state.rows
    for number, payload in enumerate(payloads):
        block = np.frombuffer(payload, np.uint8).reshape(shape.layers, 2, shape.block_tokens, shape.row_bytes)
        at = number * shape.block_tokens
        rows[:, :, at : at + shape.block_tokens] = block.transpose(1, 0, 2, 3)
    return state.blob


@dataclass(frozen=True, slots=True)
class _State:
    """A blob seen through the format; each property is a view of its bytes, into which one can write."""

    blob: Bytes
    shape: StateShape
    sequence: int
    tokens: int

    @classmethod
    def size(cls, shape: StateShape, sequence: int, tokens: int) -> int:
        parts = 2 * shape.layers * (_PART_HEADER.itemsize + tokens * shape.row_bytes)
        trailer = _WORD * (shape.streams - 1 - sequence)
        return _header_bytes(sequence) + tokens * _CELL.itemsize + 2 * _WORD + parts + trailer

    @property
    def header(self) -> NDArray[np.uint32]:
        """Magic, sequence id, streams, and the cells of each stream up to the sequence's own."""
        return self.blob[: _header_bytes(self.sequence)].view("<u4")

    @property
    def cells(self) -> NDArray[np.void]:
        return self.blob[_header_bytes(self.sequence) : self._data_at].view(_CELL)

    @property
    def data_header(self) -> NDArray[np.uint32]:
        """Whether values are transposed, and layers."""
        return self.blob[self._data_at : self._data_at + 2 * _WORD].view("<u4")

    @property
    def part_headers(self) -> NDArray[np.void]:
        """Shape (2, layers, 1)."""
        return self._parts[:, :, : _PART_HEADER.itemsize].view(_PART_HEADER)

    @property
    def rows(self) -> Bytes:
        """Shape (2, layers, tokens, row_bytes): keys, then values."""
        # Splitting the last axis, which is contiguous, makes another view and no copy.
        return self._parts[:, :, _PART_HEADER.itemsize :].reshape(2, self.shape.layers, self.tokens, self.shape.row_bytes)

    @property
    def trailer(self) -> NDArray[np.uint32]:
        """The cells of the streams after the sequence's own."""
        return self.blob[self.blob.size - _WORD * (self.shape.streams - 1 - self.sequence) :].view("<u4")

    @property
    def _data_at(self) -> int:
        return _header_bytes(self.sequence) + self.tokens * _CELL.itemsize

    @property
    def _parts(self) -> Bytes:
        """Shape (2, layers, bytes of one layer's keys or values with their header)."""
        part = _PART_HEADER.itemsize + self.tokens * self.shape.row_bytes
        start = self._data_at + 2 * _WORD
        return self.blob[start : start + 2 * self.shape.layers * part].reshape(2, self.shape.layers, part)


def _header_bytes(sequence: int) -> int:
    return _WORD * (3 + sequence + 1)


def _parse(blob: Bytes, shape: StateShape, sequence: int, start: int) -> _State:
    """A blob that is wholly as expected, its tokens in order from position `start`."""
    if blob.size < _header_bytes(sequence):
        raise StateError(f"unknown state layout: {blob.size} bytes, too few for its header; {_ADVICE}")
    magic, found, streams, *counts = blob[: _header_bytes(sequence)].view("<u4").tolist()
    _expect("magic", magic, MAGIC)
    _expect("sequence id", found, sequence)
    _expect("streams", streams, shape.streams)
    _expect("cells of earlier sequences", sum(counts[:-1]), 0)
    _expect("bytes", blob.size, _State.size(shape, sequence, counts[-1]))
    # From here on no view can leave the blob.
    state = _State(blob, shape, sequence, counts[-1])
    cells, positions = state.cells, np.arange(start, start + state.tokens)
    in_order = (cells["position"] == positions) & (cells["sequences"] == 1) & (cells["sequence"] == sequence)
    if not in_order.all():
        raise StateError(f"unknown state layout: cell {int(np.argmin(in_order))} is not the sequence's next position; {_ADVICE}")
    _expect("transposed values, layers", state.data_header.tolist(), [0, shape.layers])
    for part in np.unique(state.part_headers):
        _expect("type of rows", int(part["type"]), F16)
        _expect("bytes of a row", int(part["row_bytes"]), shape.row_bytes)
    _expect("cells of later sequences", int(state.trailer.sum()), 0)
    return state


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise StateError(f"unknown state layout: {what} is {found}, expected {expected}; {_ADVICE}")
