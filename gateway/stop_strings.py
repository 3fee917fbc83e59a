"""Find the stop string that completes first in a text that comes in pieces, without showing any of it.

Called by `answer` with the text of every token. Owns the text kept back, which is shorter than the longest stop string; costs a
constant per character and stop string, whatever the pieces. The text before the stop string is the same however it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feeds one answer's text through all stop strings. `complete` once one of them has appeared; nothing is shown after that."""

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first: of two that complete at the same character, the longer began earlier.
        self._stops = [_Matcher(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._kept = ""
        self.complete = False

    def push(self, text: str) -> str:
        """The part of all text so far that can be shown now."""
        if self.complete or not self._stops:
            return "" if self.complete else text
        before, self._kept = self._kept, self._kept + text
        for end, character in enumerate(text, len(before) + 1):
            completed = [stop for stop in self._stops if stop.step(character)]
            if completed:
                shown = self._kept[: end - len(completed[0].text)]
                self._kept, self.complete = "", True
                return shown
        cut = len(self._kept) - max(stop.matched for stop in self._stops)
        shown, self._kept = self._kept[:cut], self._kept[cut:]
        return shown

    def flush(self) -> str:
        """At the answer's end: what was kept back has become no stop string."""
        shown, self._kept = self._kept, ""
        return shown


class _Matcher:
    """How much of one stop string the text so far ends with (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _fallbacks(text)

    def step(self, character: str) -> bool:
        """Take the next character; true where it completes the string."""
        if self.matched == len(self.text):
            self.matched = self._fallback[-1]
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """For each prefix: the length of its longest proper prefix that is a suffix of it too."""
    lengths = [0]
    for place in range(1, len(text)):
        length = lengths[-1]
        while length and text[length] != text[place]:
            length = lengths[length - 1]
        lengths.append(length + (text[length] == text[place]))
    return lengths
