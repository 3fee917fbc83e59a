"""The sim: a model without weights whose text depends on every byte of its KV.

Called by `batch` through `compute`, as any model. Owns the KV of its slots, in pages (`pages`). The KV of a token is 8 bytes
chained over the ids before it, and the next token is chosen by a hash over all KV bytes of the slot: so a block that is lost,
stale, moved or changed anywhere changes the text at once. It takes no time itself; `forward` says what the pass would have cost
on its hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from pdd.engine.base import Capabilities, EngineFault, Payload
from pdd.engine.model import Logits, Model, Row, StepCost
from pdd.engine.sim.cost import HARDWARE, MODELS, HardwareProfile, ModelProfile, StepShape, kv_capacity_tokens, step_cost_s
from pdd.engine.sim.digest import KV_BYTES, NO_NOISE, Noise, choose, logits, token_kv
from pdd.engine.sim.pages import DEVICE_DTYPES, PagedKv, PagePool
from pdd.engine.sim.vocabulary import MODEL_DIGEST, Vocabulary, sim_vocabulary
from pdd.kv.layout import SIM_DIGEST, KvLayout


@dataclass(frozen=True, slots=True)
class SimConfig:
    slots: int = 8
    context_tokens: int = 8192
    block_tokens: int = 16
    page_tokens: int = 16  # of the device's memory; need not fit the block
    device_dtype: str = "f16"  # the device's KV elements, one of `pages.DEVICE_DTYPES`
    hardware: HardwareProfile = HARDWARE["instant"]
    model: ModelProfile = MODELS["tiny"]
    # Payloads as long as the KV they stand for, so that a real link carries real bytes. Both ends must agree.
    pad_to_declared: bool = False
    noise: Noise = NO_NOISE  # of this instance's logits


class SimModel(Model):
    def __init__(self, config: SimConfig) -> None:
        self._config = config
        self._vocabulary = sim_vocabulary()
        self._pages = PagePool(config.page_tokens, config.device_dtype)
        self._slots = [_Slot(PagedKv(self._pages)) for _ in range(config.slots)]
        self._on_device = replace(config.model, kv_element_bytes=DEVICE_DTYPES[config.device_dtype])
        self._imported_bytes = 0  # since the last pass
        self.capabilities = Capabilities(config.context_tokens, config.slots, True, self._vocabulary.size)
        self.layout = KvLayout(
            model_digest=MODEL_DIGEST,
            tokenizer_digest=self._vocabulary.digest,
            layers=config.model.layers,
            kv_heads=config.model.kv_heads,
            head_size=config.model.head_size,
            block_tokens=config.block_tokens,
            wire_formats=(SIM_DIGEST,),
            block_bytes=config.block_tokens * config.model.kv_bytes,
            engine="sim",
            device_dtype=config.device_dtype,
            page_tokens=config.page_tokens,
        )
        digests = config.block_tokens * KV_BYTES
        self._padding = bytes(self.layout.block_bytes - digests if config.pad_to_declared else 0)
        self._payload_bytes = digests + len(self._padding)

    def load(self) -> None:
        config = self._config
        wanted, held = config.slots * config.context_tokens, kv_capacity_tokens(config.hardware, self._on_device)
        if wanted > held:
            raise EngineFault(
                f"{config.slots} slots of {config.context_tokens} tokens need KV for {wanted} tokens; {config.hardware.name} has "
                f"memory for {held:.0f} in {config.device_dtype} beside {config.model.name}: "
                "lower PDD_SLOTS or PDD_CONTEXT_TOKENS"
            )

    def close(self) -> None:
        self._slots.clear()

    def forward(self, rows: Sequence[Row]) -> tuple[list[Logits], StepCost]:
        wanted: list[Logits] = []
        attended = 0
        slots, vocabulary, noise, context_tokens = self._slots, self._vocabulary, self._config.noise, self._config.context_tokens
        held: dict[int, int] = {}  # tokens, by slot
        for row in rows:
            slot = slots[row.slot]
            held[row.slot] = tokens = slot.append(row, context_tokens)
            attended += tokens
            if row.want_logits:
                wanted.append(SimLogits(slot.hash.intdigest(), vocabulary, noise))
        shape = StepShape(len(rows), attended, sum(held.values()), self._imported_bytes)
        self._imported_bytes = 0
        return wanted, StepCost(step_cost_s(shape, self._config.hardware, self._on_device))

    def import_kv(self, slot: int, payloads: Sequence[Payload]) -> None:
        digests = self._payload_bytes - len(self._padding)
        target = self._slots[slot]
        if target.tokens:
            raise EngineFault(f"slot {slot} holds {target.tokens} tokens; clear it before an import")
        for number, payload in enumerate(payloads):
            if len(payload) != self._payload_bytes:
                raise EngineFault(f"block {number} has {len(payload)} bytes where {self._payload_bytes} are a block")
            view = memoryview(payload)
            if bytes(view[digests:]) != self._padding:
                raise EngineFault(f"block {number} is damaged: its padding is not zero")
            target.fill(bytes(view[:digests]))
        self._imported_bytes += len(payloads) * self.layout.block_bytes

    def export_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        digests = self._payload_bytes - len(self._padding)
        source, block_tokens = self._slots[slot], self._config.block_tokens
        if last_block * block_tokens > source.tokens:
            raise EngineFault(f"slot {slot} has no block {last_block - 1}: it holds {source.tokens} tokens")
        kv = source.kv.read(first_block * block_tokens, last_block * block_tokens)
        return tuple(kv[at : at + digests] + self._padding for at in range(0, len(kv), digests))

    def clear(self, slot: int) -> None:
        self._slots[slot].kv.clear()
        self._slots[slot] = _Slot(PagedKv(self._pages))


@dataclass(slots=True)
class _Slot:
    kv: PagedKv
    # Over all KV, so that one more token costs the same anywhere.
    hash: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    @property
    def tokens(self) -> int:
        return self.kv.tokens

    def append(self, row: Row, context_tokens: int) -> int:
        """Compute the KV of the next token; returns how many there are then."""
        held, position = self.kv, row.position
        if position != held.tokens or position >= context_tokens:
            raise EngineFault(
                f"row at position {row.position} of slot {row.slot}, which holds {held.tokens} of {context_tokens} tokens"
            )
        kv = token_kv(held.last(), row.token)
        held.append_token(kv)
        self.hash.update(kv)
        return position + 1

    def fill(self, kv: bytes) -> None:
        """Take imported KV; what counts of it is what the pages hold."""
        before = self.tokens
        self.kv.append(kv)
        self.hash.update(self.kv.read(before, self.tokens))


@dataclass(slots=True)  # not frozen: one is made for every token, and freezing doubles what that takes
class SimLogits:
    kv_hash: int
    vocabulary: Vocabulary = field(repr=False)
    noise: Noise = NO_NOISE

    def argmax(self) -> int:
        return choose(self.kv_hash, self.vocabulary, self.noise)

    def array(self) -> NDArray[np.float32]:
        return logits(self.kv_hash, self.vocabulary, self.noise)
