from google.protobuf.message import Message

from pdd.kv.wire import WireFrame
from pdd.transfer.messages import encode_push
from pdd.v1 import decode_pb2, kv_pb2
from virtual.charge import FRAME_BYTES, Charge, Meter, Tally

MEBIBYTE = 1 << 20


def charge(message: Message) -> Charge:
    return Meter().charge(message, message.SerializeToString())


def test_a_message_costs_its_serialised_size_and_its_framing() -> None:
    frame = decode_pb2.DecodeFrame(step=1, handle=[1, 2], token=[3, 4])
    size = len(frame.SerializeToString())
    assert charge(frame) == Charge("DecodeFrame", size, size + FRAME_BYTES)


def test_one_of_several_kinds_of_message_is_named() -> None:
    extend = decode_pb2.DecodeCommand(extend=decode_pb2.Extend(handle=1, ids=range(100)))
    assert charge(extend).kind == "DecodeCommand.extend"
    assert charge(decode_pb2.DecodeCommand()).kind == "DecodeCommand"


def test_a_frame_of_kv_costs_what_it_stands_for_instead_of_its_payload() -> None:
    request = kv_pb2.PushRequest(frame=kv_pb2.Frame(payload=bytes(8), declared_bytes=MEBIBYTE))
    size = len(request.SerializeToString())
    assert charge(request) == Charge("PushRequest.frame", size, size - 8 + MEBIBYTE + FRAME_BYTES)


def test_a_frame_in_the_form_of_the_transfer_costs_the_same() -> None:
    message = kv_pb2.PushRequest(frame=kv_pb2.Frame(payload=bytes(8), declared_bytes=MEBIBYTE))
    frame = WireFrame(kv_pb2.Frame(declared_bytes=MEBIBYTE), (bytes(4), bytes(4)))
    assert Meter().charge(frame, encode_push(frame)) == charge(message)


def test_a_dense_frame_of_kv_costs_its_size() -> None:
    request = kv_pb2.PushRequest(frame=kv_pb2.Frame(payload=bytes(1000), declared_bytes=1000))
    size = len(request.SerializeToString())
    assert charge(request).link_bytes == size + FRAME_BYTES


def test_bytes_cost_their_length() -> None:
    assert Meter().charge(b"abc", b"abc") == Charge("bytes", 3, 3 + FRAME_BYTES)


def test_a_tally_adds_up() -> None:
    tally = Tally()
    for size in (10, 20):
        tally.add(Charge("kind", size, size + 1000))
    assert tally == Tally(messages=2, serialised_bytes=30, link_bytes=2030)
