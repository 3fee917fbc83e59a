"""How many bytes the streams of a decoder's gateways have carried: counted where messages become bytes, or are made of them."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.v1 import decode_pb2


@dataclass(slots=True)
class Traffic:
    read_bytes: int = 0
    written_bytes: int = 0

    def parse(self, data: bytes) -> decode_pb2.DecodeCommand:
        self.read_bytes += len(data)
        return decode_pb2.DecodeCommand.FromString(data)

    def serialise(self, frame: decode_pb2.DecodeFrame) -> bytes:
        data = frame.SerializeToString()
        self.written_bytes += len(data)
        return data
