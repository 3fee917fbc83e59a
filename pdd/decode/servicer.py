"""A decoder's gRPC face: mapping only. Decode and KvTransfer share a port, and KV comes over connections of its own."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

from pdd.decode.decoder import DecodeContext, Decoder
from pdd.transfer.messages import add_push
from pdd.transfer.receiver import Receiver
from pdd.v1 import decode_pb2, decode_pb2_grpc, kv_pb2


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    async def Attach(self, request_iterator: object, context: DecodeContext) -> None:  # type: ignore[override]
        await self._decoder.attach(context)


def add_decoder(server: grpc.aio.Server, decoder: Decoder, receiver: Receiver) -> Sequence[str]:
    """Add both services to a server and return their full names."""
    names = (decode_pb2.DESCRIPTOR.services_by_name["Decode"], kv_pb2.DESCRIPTOR.services_by_name["KvTransfer"])
    decode, transfer = (name.full_name for name in names)
    # As the generated function does, but for the bytes being counted.
    traffic, attach = decoder.traffic, DecodeServicer(decoder).Attach
    handler = grpc.stream_stream_rpc_method_handler(attach, traffic.parse, traffic.serialise)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(decode, {"Attach": handler}),))
    server.add_registered_method_handlers(decode, {"Attach": handler})
    add_push(server, receiver.push)
    return decode, transfer
