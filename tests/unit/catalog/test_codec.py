from __future__ import annotations

import contextlib

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.catalog.base import Registration, Role
from pdd.catalog.codec import MalformedRegistration, decode, encode, encode_incarnation
from pdd.catalog.prefixes import CacheState
from pdd.identity import Instance
from pdd.kv.layout import KvLayout
from tests.unit.catalog.samples import registration

COUNTS = st.integers(0, 2**32 - 1)
LAYOUTS = st.builds(
    KvLayout,
    model_digest=st.text(),
    tokenizer_digest=st.text(),
    layers=COUNTS,
    kv_heads=COUNTS,
    head_size=COUNTS,
    block_tokens=COUNTS,
    wire_formats=st.lists(st.text()).map(tuple),
    block_bytes=st.integers(0, 2**64 - 1),
    engine=st.text(),
    device_dtype=st.text(),
    page_tokens=COUNTS,
    tensor_parallel=COUNTS,
)
REGISTRATIONS = st.builds(
    Registration,
    instance=st.builds(Instance, id=st.text(), incarnation=st.integers(0, 2**64 - 1)),
    role=st.sampled_from(Role),
    site=st.text(),
    address=st.text(),
    layout=LAYOUTS,
    context_tokens=COUNTS,
    slots=COUNTS,
    load=st.floats(allow_nan=False),
    cached=st.none() | st.builds(CacheState, *[st.integers(0, 2**64 - 1)] * 3),
)


@given(REGISTRATIONS)
def test_registration_survives_the_wire(original: Registration) -> None:
    assert decode(encode(original)) == original


@given(REGISTRATIONS)
def test_value_starts_with_the_incarnation(original: Registration) -> None:
    assert encode(original).startswith(encode_incarnation(original.instance))


@given(st.binary(max_size=200))
def test_noise_is_malformed_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(MalformedRegistration):
        decode(noise)


@given(st.data())
def test_cut_or_changed_value_is_malformed_or_a_registration(data: st.DataObject) -> None:
    value = bytearray(encode(registration()))
    del value[data.draw(st.integers(8, len(value))) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if value:
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedRegistration):
        assert isinstance(decode(bytes(value)), Registration)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("role", "router"),
        ("id", 7),
        ("address", None),
        ("layout", b"\xff"),
        ("slots", "many"),
        ("load", "low"),
        ("cached", [1, 2]),
        ("cached", [1, 2, "three"]),
    ],
)
def test_field_of_the_wrong_kind_is_named_or_shown(field: str, value: object) -> None:
    original = encode(registration())
    body = msgpack.unpackb(original[8:]) | {field: value}
    with pytest.raises(MalformedRegistration):
        decode(original[:8] + msgpack.packb(body))
