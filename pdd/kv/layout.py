"""What a KV block means, and which instances can exchange blocks.

Called at registration and at every offer. Compatibility is a relation, not equality: the two sites differ in chip, engine, device
dtype, parallel degree and page size, and may, as long as the bytes on the wire mean the same to both.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.v1 import kv_pb2

DENSE_F16 = "dense.f16"
SIM_DIGEST = "sim.digest"


@dataclass(frozen=True, slots=True)
class KvLayout:
    """See `KvLayout` in kv.proto for each field's meaning and unit."""

    model_digest: str
    tokenizer_digest: str
    layers: int
    kv_heads: int
    head_size: int
    block_tokens: int
    wire_formats: tuple[str, ...]
    block_bytes: int  # bytes that one block stands for on the wire
    engine: str
    device_dtype: str = "f16"
    page_tokens: int = 16
    tensor_parallel: int = 1

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_tokens

    def to_proto(self) -> kv_pb2.KvLayout:
        return kv_pb2.KvLayout(
            model_digest=self.model_digest,
            tokenizer_digest=self.tokenizer_digest,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            block_tokens=self.block_tokens,
            wire_formats=self.wire_formats,
            block_bytes=self.block_bytes,
            engine=self.engine,
            device_dtype=self.device_dtype,
            page_tokens=self.page_tokens,
            tensor_parallel=self.tensor_parallel,
        )

    @classmethod
    def from_proto(cls, message: kv_pb2.KvLayout) -> KvLayout:
        return cls(
            model_digest=message.model_digest,
            tokenizer_digest=message.tokenizer_digest,
            layers=message.layers,
            kv_heads=message.kv_heads,
            head_size=message.head_size,
            block_tokens=message.block_tokens,
            wire_formats=tuple(message.wire_formats),
            block_bytes=message.block_bytes,
            engine=message.engine,
            device_dtype=message.device_dtype,
            page_tokens=message.page_tokens,
            tensor_parallel=message.tensor_parallel,
        )


_MUST_MATCH = (
    "model_digest",
    "tokenizer_digest",
    "layers",
    "kv_heads",
    "head_size",
    "block_tokens",
    "block_bytes",
)


def differences(sender: KvLayout, receiver: KvLayout) -> tuple[str, ...]:
    """Why the two cannot exchange blocks, one line per field that differs; empty where they can."""
    found = [
        f"{name}: {getattr(sender, name)!r} against {getattr(receiver, name)!r}"
        for name in _MUST_MATCH
        if getattr(sender, name) != getattr(receiver, name)
    ]
    if common_format(sender, receiver) is None:
        found.append(f"wire_formats: none in common of {sender.wire_formats!r} and {receiver.wire_formats!r}")
    return tuple(found)


def common_format(sender: KvLayout, receiver: KvLayout) -> str | None:
    """The sender's most preferred wire format that the receiver takes."""
    return next((name for name in sender.wire_formats if name in receiver.wire_formats), None)
