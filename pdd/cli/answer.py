"""Shows an answer as it streams in, each token in the colour of the instance that made it.

Called by `ask`. Owns what was printed so far; knows nothing of calls. Without colours (a pipe, NO_COLOR) a marker such as
[relay-0] stands wherever the instance changes.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pdd.client import Delta

_PALETTE = ("yellow", "cyan", "green", "magenta", "blue", "red")


class AnswerPrinter:
    """Feed it the deltas in order, then `finish`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._coloured = console.color_system is not None and not console.no_color
        self._tokens: dict[str, int] = {}  # by instance, in the order they appeared
        self._last_source = ""

    def show(self, delta: Delta) -> None:
        self._tokens[delta.source] = self._tokens.get(delta.source, 0) + len(delta.tokens)
        if not delta.text:
            return  # the token is part of a character or a stop string that is not whole yet
        if not self._coloured and delta.source != self._last_source:
            self._print(Text(f"[{delta.source}]"))
        self._last_source = delta.source
        self._print(Text(printable(delta.text), style=self._style(delta.source)))

    def finish(self) -> None:
        """End the line and say who made how many tokens."""
        legend = Text("\n\nmade by  ")
        for source, count in self._tokens.items():
            unit = "token" if count == 1 else "tokens"
            legend.append(f"{source}: {count} {unit}", style=self._style(source)).append("   ")
        legend.rstrip()
        self._console.print(legend, highlight=False)

    def _style(self, source: str) -> str:
        return _PALETTE[list(self._tokens).index(source) % len(_PALETTE)] if self._coloured else ""

    def _print(self, text: Text) -> None:
        self._console.print(text, end="", soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """`text` without control characters, which a model may write and a terminal would obey."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
