from __future__ import annotations

import contextlib

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.catalog.packing import (
    MalformedEvent,
    decode_event,
    encode_event,
    pack_hashes,
    pack_state,
    unpack_hashes,
    unpack_state,
)
from pdd.catalog.prefixes import CacheBatch, CacheEvent, CacheState
from pdd.identity import Instance

U64 = st.integers(0, 2**64 - 1)
HASHES = st.lists(U64, max_size=20).map(tuple)
STATES = st.builds(CacheState, U64, U64, U64)
INSTANCES = st.builds(Instance, id=st.text(), incarnation=U64)
EVENTS = st.builds(CacheEvent, INSTANCES, st.one_of(STATES, st.builds(CacheBatch, STATES, HASHES, HASHES)))
SAMPLE = encode_event(CacheEvent(Instance("main-0", 7), CacheBatch(CacheState(1, 2, 3), (1, 2), (3,))))


@given(EVENTS)
def test_event_survives_the_stream(event: CacheEvent) -> None:
    assert decode_event(encode_event(event)) == event


@given(HASHES)
def test_a_hash_takes_eight_bytes(hashes: tuple[int, ...]) -> None:
    assert len(pack_hashes(hashes)) == 8 * len(hashes)
    assert unpack_hashes(pack_hashes(hashes)) == hashes


@given(STATES)
def test_state_takes_24_bytes(state: CacheState) -> None:
    assert len(pack_state(state)) == 24
    assert unpack_state(pack_state(state)) == state


@given(st.binary(max_size=200))
def test_noise_is_malformed_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_event(noise)


@given(st.data())
def test_cut_or_changed_event_is_malformed_or_an_event(data: st.DataObject) -> None:
    value = bytearray(SAMPLE)
    del value[data.draw(st.integers(0, len(value))) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if value:
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedEvent):
        assert isinstance(decode_event(bytes(value)), CacheEvent)


@pytest.mark.parametrize(("at", "value"), [(0, 2), (1, 7), (2, b"short"), (3, b"short"), (4, b"odd"), (5, None)])
def test_event_with_a_field_of_another_kind_is_malformed(at: int, value: object) -> None:
    body = msgpack.unpackb(SAMPLE, raw=True)
    body[at] = value
    with pytest.raises(MalformedEvent):
        decode_event(msgpack.packb(body, use_bin_type=False))
