from __future__ import annotations

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.identity import RequestId
from pdd.kv.layout import DENSE_F16, SIM_DIGEST
from pdd.kv.wire import (
    MAX_FRAME_BYTES,
    TARGET_FRAME_BYTES,
    MalformedFrame,
    WireFrame,
    block_checksum,
    blocks_per_frame,
    build_frame,
    commit_digest,
    largest_frame,
    parse_frame,
)
from pdd.v1 import kv_pb2

REQUEST = RequestId(7, 1)
BLOCKS = (b"a" * 8, b"b" * 8, b"c" * 8)


def came(sent: WireFrame) -> WireFrame:
    """The frame as it is received: its payload in one piece."""
    return WireFrame(sent.head, (memoryview(b"".join(sent.payload)),))


def frame(payload: bytes = b"".join(BLOCKS), **changed: object) -> WireFrame:
    head = build_frame(REQUEST, 4, BLOCKS, 8).head
    for name, value in changed.items():
        if name == "checksums":
            del head.checksums[:]
            head.checksums.extend(value)  # type: ignore[arg-type]
        else:
            setattr(head, name, value)
    return WireFrame(head, (memoryview(payload),))


@settings(deadline=None)
@given(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_frame_carries_its_blocks_unchanged(blocks: list[bytes], first_block: int) -> None:
    sent = build_frame(REQUEST, first_block, blocks, 8)
    parsed = parse_frame(came(sent), DENSE_F16, 8)
    assert (parsed.request, parsed.first_block, parsed.end_block) == (REQUEST, first_block, first_block + len(blocks))
    assert [bytes(payload) for payload in parsed.payloads] == blocks
    assert parsed.declared_bytes == 8 * len(blocks)
    assert parsed.bad_block() is None


def test_blocks_are_sent_as_they_are_given() -> None:
    views = [memoryview(block) for block in BLOCKS]
    sent = build_frame(REQUEST, 4, views, 8)
    assert [id(piece) for piece in sent.payload] == [id(view) for view in views]
    assert sent.head == build_frame(REQUEST, 4, BLOCKS, 8).head


def test_a_frame_out_of_a_protobuf_message_is_one_from_the_wire() -> None:
    message = kv_pb2.Frame(first_block=4, payload=b"".join(BLOCKS))
    assert bytes(WireFrame.from_proto(message).payload[0]) == message.payload


def test_blocks_of_a_parsed_frame_are_views_of_one_buffer() -> None:
    whole = b"".join(BLOCKS)
    assert all(payload.obj is whole for payload in parse_frame(frame(whole), DENSE_F16, 8).payloads)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (frame(checksums=()), "no blocks"),
        (frame(checksums=(1, 2)), "do not make 2 equally long blocks|blocks of 12 bytes|declares"),
        (frame(checksums=(1, 2, 3, 4, 5)), "5 equally long"),
        (frame(payload=b""), "0 bytes of payload"),
        (frame(payload=b"a" * 21), r"blocks of 7 bytes; dense.f16 has blocks of 8"),
        (frame(payload=b"a" * 23), "23 bytes of payload do not make 3"),
        (frame(payload=b"a" * (MAX_FRAME_BYTES + 1)), "4194304 at most"),
        (frame(declared_bytes=23), "declares 23 bytes; 3 blocks of 8"),
        (frame(declared_bytes=0), "declares 0 bytes"),
    ],
)
def test_a_malformed_frame_is_refused_and_says_why(message: WireFrame, complaint: str) -> None:
    with pytest.raises(MalformedFrame, match=complaint):
        parse_frame(message, DENSE_F16, 8)


def test_only_a_format_that_declares_its_bytes_may_be_shorter_than_it_declares() -> None:
    digest = came(build_frame(REQUEST, 0, [b"12345678"], 368_640))
    assert parse_frame(digest, SIM_DIGEST, 368_640).declared_bytes == 368_640
    with pytest.raises(MalformedFrame, match="blocks of 8 bytes"):
        parse_frame(digest, DENSE_F16, 368_640)


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0, 7), st.integers(1, 255))
def test_any_damaged_byte_is_found_in_its_block(block: int, byte: int, flip: int) -> None:
    payload = bytearray(b"".join(BLOCKS))
    payload[8 * block + byte] ^= flip
    assert parse_frame(frame(payload=bytes(payload)), DENSE_F16, 8).bad_block() == 4 + block


@pytest.mark.parametrize("blocks", [[], [b""], [b"1234", b"12345678", b""], [b"a" * (MAX_FRAME_BYTES + 1)]])
def test_blocks_that_make_no_legal_frame_are_not_sent(blocks: list[bytes]) -> None:
    with pytest.raises(ValueError, match="equally long"):
        build_frame(REQUEST, 0, blocks, 8)


@pytest.mark.parametrize(("block_bytes", "blocks"), [(8, 131_072), (368_640, 2), (1 << 20, 1), (3 << 20, 1), (100 << 20, 1)])
def test_frames_are_cut_to_the_target_and_hold_at_least_a_block(block_bytes: int, blocks: int) -> None:
    assert blocks_per_frame(block_bytes) == blocks
    assert blocks == 1 or blocks * block_bytes <= TARGET_FRAME_BYTES


@pytest.mark.parametrize(("block_bytes", "largest"), [(1 << 20, 4 << 20), (3 << 20, 3 << 20), (100 << 20, 100 << 20)])
def test_the_largest_frame_is_the_bound_or_one_block(block_bytes: int, largest: int) -> None:
    assert largest_frame(block_bytes) == largest


def test_the_digest_is_over_the_checksums_in_order() -> None:
    assert commit_digest(()) == xxhash.xxh3_64_intdigest(b"")
    assert commit_digest((1, 2)) == xxhash.xxh3_64_intdigest(bytes([1, *[0] * 7, 2, *[0] * 7]))
    assert commit_digest((1, 2)) != commit_digest((2, 1))
    assert block_checksum(b"abc") == xxhash.xxh3_64_intdigest(b"abc")
