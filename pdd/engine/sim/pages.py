"""The sim's device memory: the KV of its slots, in pages and in the device's own element type.

Used by `model` alone. Owns the pages; a slot is a table of them. It knows nothing of blocks: what goes in and comes out is a run
of tokens' KV as it is on the wire, `KV_BYTES` a token, of any length and from any position on. Pages and element type are the
device's affair, as they are on real ones: two sims that differ in both hold the same KV in other bytes, and hand it over exactly.

    wire     | block 0 | block 1 | block 2 |            16 tokens each, 8 bytes a token: four elements of 16 bits
    pages    |   page 0    |   page 1    |              24 tokens each, elements as wide as the type says

A page that is given back keeps what it held, so that a slot which read past its own tokens would read another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from pdd.engine.sim.digest import KV_BYTES, ROOT

# Bytes of an element. Only types that hold every f16 exactly; what is lost in narrower ones the sim shows by its logit noise.
DEVICE_DTYPES: Mapping[str, int] = MappingProxyType({"f16": 2, "f32": 4})

_WIRE_ELEMENT = 2  # bytes


class PagePool:
    """Pages of `page_tokens` tokens, made when they are first needed and used again. Says how KV lies in them."""

    def __init__(self, page_tokens: int, device_dtype: str) -> None:
        self.token_bytes = KV_BYTES // _WIRE_ELEMENT * DEVICE_DTYPES[device_dtype]
        self.page_bytes = page_tokens * self.token_bytes
        self.widens = self.token_bytes != KV_BYTES
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(self.page_bytes)

    def give(self, pages: list[bytearray]) -> None:
        self._free.extend(pages)

    def to_device(self, kv: bytes) -> bytes:
        return np.frombuffer(kv, "<u2").astype("<u4").tobytes() if self.widens else kv

    def to_wire(self, kv: bytes | bytearray) -> bytes:
        return np.frombuffer(kv, "<u4").astype("<u2").tobytes() if self.widens else bytes(kv)


class PagedKv:
    """The KV of one slot, from position 0 on without holes."""

    def __init__(self, pool: PagePool) -> None:
        self.tokens = 0
        self._pool = pool
        self._pages: list[bytearray] = []
        self._end = 0  # device bytes

    def append(self, kv: bytes) -> None:
        """Hold the wire KV of the next tokens."""
        device, page_bytes = self._pool.to_device(kv), self._pool.page_bytes
        taken = 0
        while taken < len(device):
            offset = self._end % page_bytes
            if offset == 0:
                self._pages.append(self._pool.take())
            part = min(page_bytes - offset, len(device) - taken)
            self._pages[-1][offset : offset + part] = device[taken : taken + part]
            self._end += part
            taken += part
        self.tokens += len(kv) // KV_BYTES

    def append_token(self, kv: bytes) -> None:
        """Hold the wire KV of one more token: as `append`, and sooner done, since a page holds whole tokens."""
        pool, end = self._pool, self._end
        offset = end % pool.page_bytes
        if offset == 0:
            self._pages.append(pool.take())
        self._end = end + pool.token_bytes
        self._pages[-1][offset : offset + pool.token_bytes] = pool.to_device(kv) if pool.widens else kv
        self.tokens += 1

    def read(self, first: int, last: int) -> bytes:
        """The wire KV of tokens [first, last), which are held."""
        page_bytes, width = self._pool.page_bytes, self._pool.token_bytes
        at, end = first * width, last * width
        parts = []
        while at < end:
            page, offset = divmod(at, page_bytes)
            parts.append(self._pages[page][offset : offset + end - at])
            at += len(parts[-1])
        return self._pool.to_wire(b"".join(parts))

    def last(self) -> bytes:
        """The wire KV of the newest token, or what stands before the first."""
        if not self.tokens:
            return ROOT
        pool = self._pool
        at = (self._end - pool.token_bytes) % pool.page_bytes
        newest = self._pages[-1][at : at + pool.token_bytes]
        return pool.to_wire(newest) if pool.widens else bytes(newest)

    def clear(self) -> None:
        self._pool.give(self._pages)
        self.tokens, self._pages, self._end = 0, [], 0
