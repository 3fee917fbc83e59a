"""A served model's tokenizer as a folder of the kind that transformers reads, for load generators that count tokens themselves.

python -m loadtest.tokenizer FOLDER                                             the sim's
python -m loadtest.tokenizer FOLDER --model-dir models/SmolLM2-135M-Instruct    a real model's
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pdd.model.load import load_card

# Any class would do that takes the tokenizer.json as it stands.
_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="loadtest.tokenizer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where it is put")
    parser.add_argument("--model-dir", type=Path, help="where `pdd model fetch` put the model [the sim's]")
    options = parser.parse_args()
    write(options.folder, options.model_dir)


def write(folder: Path, model_dir: Path | None) -> None:
    """Raises ModelFilesError where `model_dir` holds no model."""
    card = load_card("sim", Path()) if model_dir is None else load_card("llama", model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    card.tokenizer.save(str(folder / "tokenizer.json"))
    template = {"chat_template": card.chat_template, "eos_token": card.eos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(_CONFIG | template, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
