"""Make the ModelCard the gateway works with, without an engine.

Called at start-up by the gateway and by whoever needs token ids. Reads files, keeps nothing.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pdd.model.card import ChatTemplateError, ModelCard
from pdd.model.manifest import ModelFilesError, read_manifest, verify

SIM_CONTEXT_TOKENS = 131_072  # sim has no bound of its own; an instance's PDD_CONTEXT_TOKENS is what holds


def load_card(engine: str, model_dir: Path) -> ModelCard:
    """The card of what `engine` ("sim" or "llama") serves.

    sim needs no files and ignores `model_dir`. Raises ModelFilesError where a file is missing or damaged, ValueError for
    any other engine.
    """
    match engine:
        case "sim":
            # Imported here, so that a gateway of real models does not load the simulator.
            from pdd.engine.sim.vocabulary import sim_card

            return sim_card(SIM_CONTEXT_TOKENS)
        case "llama":
            return _card_of_files(model_dir)
    raise ValueError(f"unknown engine {engine!r}: PDD_ENGINE is sim or llama")


def _card_of_files(model_dir: Path) -> ModelCard:
    manifest = read_manifest(model_dir)
    tokenizer = Tokenizer.from_file(str(verify(model_dir, manifest.tokenizer)))
    chat_template = verify(model_dir, manifest.chat_template).read_text(encoding="utf-8")
    try:
        return ModelCard(
            name=manifest.name,
            context_tokens=manifest.context_tokens,
            eos_ids=manifest.eos_ids,
            model_digest=manifest.weights.sha256,
            tokenizer_digest=manifest.tokenizer.sha256,
            tokenizer=tokenizer,
            chat_template=chat_template,
            bos_token=manifest.bos_token,
            eos_token=manifest.eos_token,
        )
    except ChatTemplateError as error:
        raise ModelFilesError(f"{model_dir}: {error}") from error
