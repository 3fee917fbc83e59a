"""What the gateway knows of the model: how to tokenise for it, and its bounds. No engine behind it.

Made by `model.load` from a model directory, or by the sim engine's vocabulary, which needs no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jinja2.sandbox
from tokenizers import Tokenizer


class ChatTemplateError(ValueError):
    """The model's chat template refused the messages; the text is the template's own."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    name: str  # the id in /v1/models
    context_tokens: int  # the model's own bound; instances may offer less
    eos_ids: tuple[int, ...]
    model_digest: str
    tokenizer_digest: str
    tokenizer: Tokenizer = field(repr=False)
    chat_template: str = field(repr=False)
    bos_token: str = ""
    eos_token: str = ""
    _compiled_template: jinja2.Template = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ChatTemplateError where the template is none. Compiling takes longer than a whole request otherwise does."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_template_error
        try:
            template = environment.from_string(self.chat_template)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template can't be compiled: {error}") from error
        object.__setattr__(self, "_compiled_template", template)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised, none are added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text of a conversation, up to where the assistant's answer begins. Raises ChatTemplateError."""
        try:
            return self._compiled_template.render(
                messages=messages, add_generation_prompt=True, bos_token=self.bos_token, eos_token=self.eos_token
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(str(error)) from error


def _raise_template_error(message: str) -> None:
    raise ChatTemplateError(message)
