"""Ways to cut one answer between prefill, relay and main, and a choice among them that meets every pair of values early."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tests.real.engine.texts import CODE, KOREAN, PROSE

PROMPTS: tuple[tuple[str, str, int], ...] = (  # name, text, tokens of its end
    ("one token", PROSE, 1),
    ("under a block", PROSE, 15),
    ("one block", PROSE, 16),
    ("over a block", PROSE, 17),
    ("chunks", PROSE, 96),
    ("prose", PROSE, 301),
    ("code", CODE, 75),
    ("korean", KOREAN, 61),
)
SAMPLINGS = ("greedy", "seeded")
EAGER = (1, 2, 15, 16, 17, 60)
MODES = ("direct", "one_shot", "catch_up", "changed in mid-course")


@dataclass(frozen=True, slots=True, order=True)
class Split:
    prompt: str
    sampling: str
    eager: int  # output tokens that main is told as ids, index 0 included
    mode: str

    def __str__(self) -> str:
        return f"{self.prompt}-{self.sampling}-{self.eager}-{self.mode}"

    @property
    def handed(self) -> int:
        """In `direct` main is told of index 0 alone."""
        return 1 if self.mode == "direct" else self.eager

    def pieces(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """The ids of each Extend, the last of which decodes on; the last id is never sent ahead."""
        told = ids[: self.handed]
        match self.mode:
            case "catch_up":
                cuts = [0, *(at for at in (len(told) // 2, len(told) * 3 // 4, len(told) - 1) if at > 0), len(told)]
            case "changed in mid-course":
                cuts = [0, *(at for at in (len(told) // 2,) if at > 0), len(told)]
            case _:
                cuts = [0, len(told)]
        cuts = sorted(set(cuts))
        return [told[start:end] for start, end in itertools.pairwise(cuts)]


def every_split() -> list[Split]:
    names = [name for name, _, _ in PROMPTS]
    return [Split(*values) for values in itertools.product(names, SAMPLINGS, EAGER, MODES)]


def pairwise_splits(count: int) -> list[Split]:
    """`count` of them, each chosen for the most pairs of values that no earlier one has."""
    left, met, chosen = every_split(), set[tuple[int, object, int, object]](), list[Split]()
    while len(chosen) < count:
        best = max(left, key=lambda split: len(_pairs(split) - met))
        left.remove(best)
        met |= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(split: Split) -> set[tuple[int, object, int, object]]:
    values = enumerate((split.prompt, split.sampling, split.eager, split.mode))
    return {(*one, *other) for one, other in itertools.combinations(values, 2)}
