"""The four prompts of the text-equality tests: short, long, many scripts, code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    text: str
    held_mbit: float = 1.0  # the link's rate at first: not even a short prompt's KV crosses while the relay makes 24 tokens

    def __str__(self) -> str:
        return self.name


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


_LIGHTHOUSES = (
    "The lighthouse at the northern cape was built in {year} by a crew of {crew} masons, who carried every stone up the cliff on "
    "their backs because the road had been washed away by the spring floods. The keeper's log for that year mentions {storms} "
    "storms, two wrecked schooners, and a winter so cold that the lamp oil had to be warmed over a stove before it would burn. "
)

_LONG = "".join(_LIGHTHOUSES.format(year=1800 + 7 * n, crew=11 + n, storms=3 + n % 5) for n in range(16))

_CODE = '''def merge(left, right):
    """Merge two sorted lists into one sorted list."""
    merged = []
    while left and right:
        if left[0] <= right[0]:
            merged.append(left.pop(0))
        else:
            merged.append(right.pop(0))
    return merged + left + right


def merge_sort(items):
    """Sort a list by splitting it in two and merging the sorted halves."""
'''

_CHILD = "Why is the sky blue, and why is the sunset red? Explain it to a curious child in a few paragraphs."
_HISTORY = f"{_LONG}\nSummarise the history of the lighthouse, then say which year was the hardest."
_SCRIPTS = "Übersetze: 오늘 날씨가 좋아요 🌞🌊, สวัสดีครับ, こんにちは世界 🎉, Привет! Und erkläre jedes Wort 👩‍🚀."

CASES = (
    Case("short", _chat(_CHILD)),
    Case("long", _chat(_HISTORY), held_mbit=6.0),
    Case("multilingual", _chat(_SCRIPTS)),
    Case("code", _CODE),
)
