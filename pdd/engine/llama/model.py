"""The llama model of the batch engine: rows to llama.cpp batches, KV to and from `dense.f16` blocks.

Made by `engine.build`, called by the batch engine from one thread. Owns the llama.cpp context from `load` to `close`. A slot is a
llama.cpp sequence id. It never schedules or samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdd.engine.base import Capabilities, EngineFault, Payload
from pdd.engine.llama.binding import ContextSettings, LlamaContext
from pdd.engine.llama.state import StateShape, compose_state, slice_blocks
from pdd.engine.model import Logits, Model, Row, StepCost
from pdd.kv.layout import DENSE_F16, KvLayout
from pdd.model.manifest import Manifest, ModelFilesError, read_manifest, verify

BLOCK_TOKENS = 16
_F16_BYTES = 2


class LlamaModel(Model):
    def __init__(self, model_dir: Path, settings: ContextSettings, block_tokens: int = BLOCK_TOKENS) -> None:
        """Reads the manifest only; raises EngineFault where there is none or the settings don't fit the model."""
        try:
            manifest = read_manifest(model_dir)
        except ModelFilesError as error:
            raise EngineFault(str(error)) from error
        if settings.context_tokens > manifest.context_tokens:
            raise EngineFault(
                f"PDD_CONTEXT_TOKENS is {settings.context_tokens}, {manifest.name} was made for at most {manifest.context_tokens}"
            )
        self._model_dir = model_dir
        self._manifest = manifest
        self._settings = settings
        self._shape = StateShape(
            layers=manifest.layers,
            row_bytes=manifest.kv_heads * manifest.head_size * _F16_BYTES,
            streams=settings.sequences,
            block_tokens=block_tokens,
        )
        self._context: LlamaContext | None = None
        self.capabilities = Capabilities(settings.context_tokens, settings.sequences, settings.exact, manifest.vocabulary)
        self.layout = _layout(manifest, self._shape)

    def load(self) -> None:
        try:
            # The mesh exchanges KV on the word of this digest, so it is checked against the file and not only quoted.
            weights = verify(self._model_dir, self._manifest.weights)
        except ModelFilesError as error:
            raise EngineFault(str(error)) from error
        self._context = LlamaContext(weights, self._settings)
        self._check_shape()

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def forward(self, rows: Sequence[Row]) -> tuple[list[Logits], StepCost]:
        if not rows:
            return [], StepCost()
        # llama.cpp computes neighbouring sequences of a batch together only where their ids ascend.
        order = sorted(range(len(rows)), key=lambda i: rows[i].slot)
        columns = np.array([(rows[i].token, rows[i].position, rows[i].slot, rows[i].want_logits) for i in order], np.int32).T
        scores = self._loaded.decode(columns[0], columns[1], columns[2], columns[3].astype(np.bool_))
        wanted = [i for i in order if rows[i].want_logits]
        by_row = dict(zip(wanted, scores, strict=True))
        return [RowLogits(by_row[i]) for i in sorted(wanted)], StepCost()

    def import_kv(self, slot: int, payloads: Sequence[Payload]) -> None:
        self._loaded.set_state(slot, compose_state(payloads, self._shape, slot))

    def export_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        if first_block == last_block:
            return ()
        # llama.cpp gives a sequence's state only whole; at over 1 GB/s that is little beside computing a chunk.
        return slice_blocks(self._loaded.state(slot), self._shape, slot, first_block, last_block)

    def take_kv(self, slot: int, first_block: int, last_block: int) -> tuple[Payload, ...]:
        if first_block == last_block:
            return ()
        # Rid of all else first, the state holds the wanted blocks only: those of an answer, not of the prompt before it.
        block_tokens = self._shape.block_tokens
        self._loaded.keep(slot, first_block * block_tokens, last_block * block_tokens)
        return slice_blocks(self._loaded.state(slot), self._shape, slot, first_block, last_block, start_block=first_block)

    def clear(self, slot: int) -> None:
        self._loaded.clear(slot)

    @property
    def _loaded(self) -> LlamaContext:
        if self._context is None:
            raise EngineFault("the model is not loaded")
        return self._context

    def _check_shape(self) -> None:
        """Refuse at start-up, not in the middle of a request, a model whose KV this engine can't cut into blocks."""
        context, manifest = self._loaded, self._manifest
        found = (context.layers, context.kv_heads, context.vocabulary)
        if found != (manifest.layers, manifest.kv_heads, manifest.vocabulary):
            raise EngineFault(
                f"{manifest.name}: the weights have {found[0]} layers, {found[1]} KV heads and {found[2]} tokens, "
                f"the manifest {manifest.layers}, {manifest.kv_heads} and {manifest.vocabulary}: run `pdd model fetch`"
            )
        block = range(self._shape.block_tokens)
        self.forward([Row(slot=0, position=i, token=manifest.eos_ids[0], want_logits=False) for i in block])
        self.export_kv(0, 0, 1)
        self.clear(0)


class RowLogits:
    """The logits of one row, in llama.cpp's own memory. Raises EngineFault where they are not numbers."""

    def __init__(self, scores: NDArray[np.float32]) -> None:
        self._scores = scores

    def argmax(self) -> int:
        best = int(self._scores.argmax())
        self._check(best)
        return best

    def array(self) -> NDArray[np.float32]:
        self._check(int(self._scores.argmax()))
        return self._scores

    def _check(self, best: int) -> None:
        # argmax finds a NaN before anything else, so one look shows whether there is any.
        if not np.isfinite(self._scores[best]):
            raise EngineFault("the model's logits are not finite numbers: its weights or the KV it was given are damaged")


def _layout(manifest: Manifest, shape: StateShape) -> KvLayout:
    return KvLayout(
        model_digest=manifest.weights.sha256,
        tokenizer_digest=manifest.tokenizer.sha256,
        layers=manifest.layers,
        kv_heads=manifest.kv_heads,
        head_size=manifest.head_size,
        block_tokens=shape.block_tokens,
        wire_formats=(DENSE_F16,),
        block_bytes=shape.block_bytes,
        engine="llama",
        page_tokens=shape.block_tokens,
    )
