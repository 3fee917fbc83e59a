"""The text of one llama.cpp process: the oracle that every split of the work has to equal.

Drives llama-cpp-python's low-level API directly and shares no code with the engine under test, so that a fault there can't hide
in both. One sequence, one pass over the prompt, then one token at a time, greedy. Run as a process of its own:
`python -m tests.real.mesh.reference MODEL.gguf N < ids.json` prints N ids as JSON for each list of prompt ids.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

CONTEXT_TOKENS = 4096


def greedy_continuations(gguf: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Run the reference in a process of its own; the first `count` greedy ids after each prompt."""
    command = [sys.executable, str(Path(__file__)), str(gguf), str(count)]
    done = subprocess.run(command, input=json.dumps(prompts), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"the reference process failed:\n{done.stderr[-2000:]}")
    ids: list[list[int]] = json.loads(done.stdout)
    return ids


def _run(gguf: str, count: int) -> None:
    import llama_cpp as llama

    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(gguf.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT_TOKENS, CONTEXT_TOKENS, 32, 1
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type, params.kv_unified = 1, False
    context = llama.llama_init_from_model(model, params)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    answers = []
    for prompt in json.load(sys.stdin):
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        answers.append(_continue(llama, context, vocabulary, prompt, count))
    json.dump(answers, sys.stdout)


def _continue(llama: object, context: object, vocabulary: int, prompt: list[int], count: int) -> list[int]:
    output: list[int] = []
    pending = prompt
    while len(output) < count:
        tokens = (ctypes.c_int32 * len(pending))(*pending)
        if llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(pending))):  # type: ignore[attr-defined]
            raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), shape=(vocabulary,))  # type: ignore[attr-defined]
        output.append(int(logits.argmax()))
        pending = output[-1:]
    return output


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
