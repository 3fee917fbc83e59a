from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.kv.wire import WireFrame, build_frame
from pdd.transfer.messages import decode_push, encode_push, kind_of
from pdd.v1 import kv_pb2
from tests.unit.transfer.parts import REQUEST, cancel, commit, offered, payloads

MADE = payloads(4)
OTHERS = [kv_pb2.PushRequest(offer=offered(4).to_proto()), commit(MADE), cancel(), kv_pb2.PushRequest()]

frames = st.builds(
    lambda first_block, size, count: build_frame(REQUEST, first_block, [bytes([count]) * size] * count, size),
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.integers(1, 200),
)


def as_protobuf(frame: WireFrame) -> kv_pb2.PushRequest:
    """The same frame as the generated code has it."""
    message = kv_pb2.PushRequest(frame=frame.head)
    message.frame.payload = b"".join(frame.payload)
    return message


def decoded_frame(data: bytes) -> WireFrame:
    message = decode_push(data)
    assert isinstance(message, WireFrame)
    return message


@settings(deadline=None)
@given(frames)
def test_a_frame_arrives_as_it_was_sent_and_as_protobuf_reads_it(frame: WireFrame) -> None:
    data = encode_push(frame)
    assert kv_pb2.PushRequest.FromString(data) == as_protobuf(frame)
    came = decoded_frame(data)
    assert came.head == frame.head
    assert b"".join(came.payload) == b"".join(frame.payload)


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 4 << 20])
def test_lengths_around_the_bounds_of_their_encoding(size: int) -> None:
    frame = build_frame(REQUEST, 0, [b"x" * size], size)
    assert kv_pb2.PushRequest.FromString(encode_push(frame)) == as_protobuf(frame)
    assert len(decoded_frame(encode_push(frame)).payload[0]) == size


def test_a_received_payload_is_a_view_of_the_message() -> None:
    data = encode_push(build_frame(REQUEST, 0, MADE, 16))
    (payload,) = decoded_frame(data).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is data


@pytest.mark.parametrize("message", OTHERS, ids=kind_of)
def test_other_messages_are_plain_protobuf(message: kv_pb2.PushRequest) -> None:
    assert encode_push(message) == message.SerializeToString()
    assert decode_push(encode_push(message)) == message


def two_frames(data: bytes) -> bytes:
    return data + data


def then_a_commit(data: bytes) -> bytes:
    return data + commit(MADE).SerializeToString()


def with_a_second_payload(data: bytes) -> bytes:
    second = kv_pb2.Frame(payload=b"other").SerializeToString()
    return bytes((data[0], data[1] + len(second))) + data[2:] + second


def as_generated_code_writes_it(data: bytes) -> bytes:
    return kv_pb2.PushRequest.FromString(data).SerializeToString()


@pytest.mark.parametrize("other_layout", [two_frames, then_a_commit, with_a_second_payload, as_generated_code_writes_it])
def test_what_is_laid_out_otherwise_is_left_to_protobuf(other_layout: Callable[[bytes], bytes]) -> None:
    data = other_layout(encode_push(build_frame(REQUEST, 0, MADE[:1], 16)))
    assert decode_push(data) == kv_pb2.PushRequest.FromString(data)


@settings(deadline=None)
@given(frames, st.data())
def test_a_damaged_message_means_what_it_means_to_protobuf(frame: WireFrame, data: st.DataObject) -> None:
    damaged = bytearray(encode_push(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, min(len(damaged), 24) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        expected = kv_pb2.PushRequest.FromString(bytes(damaged))
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_push(bytes(damaged))
    else:
        message = decode_push(bytes(damaged))
        assert (as_protobuf(message) if isinstance(message, WireFrame) else message) == expected
