"""llama.cpp behind a few typed calls: load, decode a batch, read and write a sequence's state.

Used by `llama.model` alone, from one thread. Owns the C model, its context and the arrays that batches are built in. Of
llama-cpp-python it uses the low-level (ctypes) part only. It knows nothing of blocks or of sampling.

Exactness: a sequence's logits are the same bits however its tokens are split over batches and whoever shares them, with flash
attention, one KV stream per sequence (`kv_unified` false), `ubatch_tokens` 32 and one thread, on the CPU. Other values of
`ubatch_tokens` and `threads` are faster and give that up.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdd.engine.base import EngineFault
from pdd.telemetry import get_logger

EXACT_UBATCH_TOKENS = 32
EXACT_THREADS = 1

_F16 = 1  # GGML_TYPE_F16
_FLASH_ATTENTION_ON = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
_LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ContextSettings:
    context_tokens: int  # cells of one sequence
    sequences: int
    batch_tokens: int  # most rows of one `decode`
    ubatch_tokens: int = EXACT_UBATCH_TOKENS
    threads: int = EXACT_THREADS

    @property
    def exact(self) -> bool:
        return self.ubatch_tokens == EXACT_UBATCH_TOKENS and self.threads == EXACT_THREADS


class LlamaContext:
    """A loaded model with one context. Every method but `close` raises EngineFault where llama.cpp refuses."""

    def __init__(self, weights: Path, settings: ContextSettings) -> None:
        self._settings = settings
        self._llama = _import_llama()
        self._llama.llama_log_set(_forward_errors, ctypes.c_void_p(0))
        self._llama.llama_backend_init()
        self._model = self._load_model(weights)
        self._context: Any = None
        try:
            self._context = self._make_context()
        except EngineFault:
            self.close()
            raise
        vocabulary = self._llama.llama_model_get_vocab(self._model)
        self.vocabulary: int = self._llama.llama_vocab_n_tokens(vocabulary)
        self.layers: int = self._llama.llama_model_n_layer(self._model)
        self.kv_heads: int = self._llama.llama_model_n_head_kv(self._model)
        self._memory = self._llama.llama_get_memory(self._context)
        self._batch = _Batch(self._llama, settings.batch_tokens)
        self._state = np.empty(0, np.uint8)

    def close(self) -> None:
        if self._context is not None:
            self._llama.llama_free(self._context)
            self._context = None
        if self._model is not None:
            self._llama.llama_model_free(self._model)
            self._model = None

    def decode(
        self, tokens: NDArray[np.int32], positions: NDArray[np.int32], sequences: NDArray[np.int32], wanted: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Compute rows (four arrays of shape (rows,)); the logits, shape (wanted rows, vocabulary), live until the next call."""
        if tokens.size > self._settings.batch_tokens:
            raise EngineFault(f"{tokens.size} rows in one batch, this context takes {self._settings.batch_tokens}")
        code = self._llama.llama_decode(self._context, self._batch.fill(tokens, positions, sequences, wanted))
        if code != 0:
            raise EngineFault(
                f"llama_decode failed with code {code} on {tokens.size} rows of sequences {np.unique(sequences).tolist()}"
            )
        count = int(np.count_nonzero(wanted))
        if count == 0:
            return np.empty((0, self.vocabulary), np.float32)
        return np.ctypeslib.as_array(self._llama.llama_get_logits(self._context), shape=(count, self.vocabulary))

    def state(self, sequence: int) -> NDArray[np.uint8]:
        """The sequence's state; lives until the next call of `state`."""
        size = self._llama.llama_state_seq_get_size(self._context, sequence)
        if self._state.size < size:
            # Room to grow, as the next chunk of the same prompt asks for a little more.
            self._state = np.empty(size + size // 2, np.uint8)
        written = self._llama.llama_state_seq_get_data(self._context, _pointer(self._state), size, sequence)
        if written != size:
            raise EngineFault(f"llama.cpp wrote {written} of {size} bytes of the state of sequence {sequence}")
        return self._state[:size]

    def set_state(self, sequence: int, state: NDArray[np.uint8]) -> None:
        """Fill an empty sequence. `state` is contiguous."""
        read = self._llama.llama_state_seq_set_data(self._context, _pointer(state), state.size, sequence)
        if read != state.size:
            self.clear(sequence)
            raise EngineFault(f"llama.cpp refused a state of {state.size} bytes for sequence {sequence}")

    def keep(self, sequence: int, first: int, last: int) -> None:
        """Drop all of a sequence but positions [first, last)."""
        self._llama.llama_memory_seq_rm(self._memory, sequence, 0, first)
        self._llama.llama_memory_seq_rm(self._memory, sequence, last, -1)

    def clear(self, sequence: int) -> None:
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _load_model(self, weights: Path) -> Any:
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers = 0  # exactness was proven on the CPU alone
        model = self._llama.llama_model_load_from_file(str(weights).encode(), params)
        if not model:
            raise EngineFault(f"llama.cpp could not load {weights}: see its error above, or run `pdd model fetch`")
        return model

    def _make_context(self) -> Any:
        settings = self._settings
        params = self._llama.llama_context_default_params()
        params.n_ctx = settings.context_tokens * settings.sequences
        params.n_seq_max = settings.sequences
        params.n_batch = settings.batch_tokens
        params.n_ubatch = settings.ubatch_tokens
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.kv_unified = False
        params.type_k = params.type_v = _F16
        context = self._llama.llama_init_from_model(self._model, params)
        if not context:
            raise EngineFault(
                f"llama.cpp could not make a context of {settings.sequences} sequences of {settings.context_tokens} tokens: "
                "lower PDD_SLOTS or PDD_CONTEXT_TOKENS if memory is short"
            )
        return context


class _Batch:
    """llama.cpp's batch over NumPy arrays, filled by slices: one ctypes assignment per row would cost more than a small step."""

    def __init__(self, llama: ModuleType, rows: int) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._sequences = np.zeros(rows, np.int32)
        self._logits = np.zeros(rows, np.int8)
        self._one_each = np.ones(rows, np.int32)
        # Each row has an array of sequence ids, of length one: row i's is element i of `_sequences`.
        ids = self._sequences.ctypes.data + self._sequences.itemsize * np.arange(rows, dtype=np.uintp)
        self._id_arrays = ids.astype(np.uintp)
        fields = dict(llama.llama_batch._fields_)
        self._batch = llama.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(fields["token"]),
            embd=None,
            pos=self._positions.ctypes.data_as(fields["pos"]),
            n_seq_id=self._one_each.ctypes.data_as(fields["n_seq_id"]),
            seq_id=self._id_arrays.ctypes.data_as(fields["seq_id"]),
            logits=self._logits.ctypes.data_as(fields["logits"]),
        )

    def fill(
        self, tokens: NDArray[np.int32], positions: NDArray[np.int32], sequences: NDArray[np.int32], wanted: NDArray[np.bool_]
    ) -> Any:
        count = tokens.size
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._logits[:count] = wanted
        self._batch.n_tokens = count
        return self._batch


def _pointer(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _import_llama() -> ModuleType:
    try:
        import llama_cpp
    except ImportError as error:
        raise EngineFault(f"the llama engine needs llama-cpp-python: pip install 'pdd[llama]' ({error})") from error
    low_level: ModuleType = llama_cpp.llama_cpp
    return low_level


def _log_line(level: int, text: bytes, _data: object) -> None:
    if level == _LOG_ERROR:
        _log.error("llama.cpp", text=text.decode(errors="replace").strip())


# A C callback must outlive every context, so it is the module's. llama.cpp's chatter is dropped, its errors go to the log.
_forward_errors = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_log_line)
